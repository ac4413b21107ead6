//! The Markdown of pages that are made of results: lines, escapes, days.

/// Columns of a line of the project's Markdown, at most.
pub const WIDTH: usize = 100;

/// A day, of seconds since 1970, as YYYY-MM-DD in UTC.
///
/// The conversion is Howard Hinnant's `civil_from_days` (chrono-compatible low-level date algorithms).
pub fn date(seconds: u64) -> String {
    let days = (seconds / 86_400) as i64 + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    format!("{}-{month:02}-{day:02}", year + era * 400 + i64::from(month <= 2))
}

/// What of Markdown and HTML a title, a note or a message could hold by accident.
pub fn escape(text: &str) -> String {
    text.replace('\n', " ").replace('<', "&lt;").replace('|', "\\|")
}

/// Text in lines of at most [`WIDTH`] columns, the first after `first`, the others as far to the right.
pub fn wrap(first: &str, text: &str) -> String {
    let (mut lines, mut line) = (String::new(), first.to_owned());
    let indent = " ".repeat(first.chars().count());
    let mut fresh = true;
    for word in text.split_whitespace() {
        if !fresh && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push_str(&line);
            lines.push('\n');
            line.clone_from(&indent);
            // At the start of a line these would begin a list or a heading.
            if word.starts_with(['-', '+', '#', '>']) {
                line.push('\\');
            }
        } else if !fresh {
            line.push(' ');
        }
        line.push_str(word);
        fresh = false;
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_is_lost_and_no_line_too_wide(words in prop::collection::vec("[a-z+#-]{1,30}", 0..60)) {
            let text = words.join(" ");
            let wrapped = wrap("- ", &text);
            prop_assert!(wrapped.lines().all(|line| line.chars().count() <= WIDTH + 1), "{wrapped}");
            let back: Vec<&str> = wrapped[2..].split_whitespace().map(|word| word.trim_start_matches('\\')).collect();
            prop_assert_eq!(back, words.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_day_is_that_of_utc() {
        assert_eq!([date(0), date(951_868_799), date(951_868_800)], ["1970-01-01", "2000-02-29", "2000-03-01"]);
    }
}
