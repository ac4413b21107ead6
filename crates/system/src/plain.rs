//! Characters of names that somebody else has chosen.

/// Whether a character of a foreign name may be shown: it moves no cursor, turns no direction of writing round (so that one
/// name reads as another: Unicode's Bidi_Control), starts no line and is not without any width.
pub fn is_plain(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let hides = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2064}' | '\u{feff}');
    !c.is_control() && !turns && !hides && !matches!(c, '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_turns_or_hides_is_not_plain() {
        let odd = "\x1b\n\u{85}\u{202e}\u{2066}\u{200f}\u{200b}\u{feff}\u{2028}\u{e0041}";
        assert_eq!(odd.chars().filter(|c| is_plain(*c)).count(), 0);
        let names = "db-1 (übung) 数据库 خادم";
        assert!(names.chars().all(is_plain));
    }
}
