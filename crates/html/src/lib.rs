//! The page that Entrain's reports share: one file, no script, no network; light and dark; for screen, phone and paper.
//!
//! A report brings its sections as text and its own part of the style. What is not its own words goes through
//! [`escape`]: names of VMs, threads and cgroups are chosen by others.
//!
//! Template crates were looked at. askama keeps markup in files with a language of their own, maud in a macro. These
//! reports are mostly drawings, whose coordinates are computed while they are written: nearly every line would be an
//! expression inside the template. What the reports have in common is what is here, and for that a macro's compiler is
//! a high price.

pub mod figure;
pub mod plot;

use std::fmt::{self, Write as _};

/// Colours, text, tables and paper, for all reports.
const STYLE: &str = include_str!("page.css");

/// Colours of what a vCPU or a task is at, by these classes: `running`, `polling`, `sibling` (it spins for one), `ready`,
/// `holder` (ready, amid a critical section), `halted`, `unknown`; and a
/// list of what they mean, `legend`.
pub const STATES: &str = include_str!("states.css");

/// A page that is being written.
#[derive(Debug)]
pub struct Page(String);

impl Page {
    /// Begins a page. `style` comes after the common one and must set `--width`, the width of the text.
    pub fn new(title: &str, style: &str) -> Self {
        Self(format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\"><title>{}</title>\
             <style>{STYLE}{style}</style></head><body><main>",
            escape(title)
        ))
    }

    /// Adds a section, as it is.
    #[must_use]
    pub fn section(mut self, html: &str) -> Self {
        self.0.push_str(html);
        self
    }

    /// The whole page.
    pub fn finish(self) -> String {
        self.0 + "</main></body></html>\n"
    }
}

/// Text as it may stand between tags and in an attribute's double quotes.
pub fn escape(text: &str) -> Escaped<'_> {
    Escaped(text)
}

/// Text whose display has no markup.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            c => f.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_a_machine_says_becomes_markup() {
        assert_eq!(escape("<script>\"&\"").to_string(), "&lt;script&gt;&quot;&amp;&quot;");
    }

    #[test]
    fn a_page_is_whole_and_asks_nobody() {
        let page = Page::new("a < b", ":root { --width: 60rem; }").section("<p>x</p>").section("<p>y</p>").finish();
        assert!(page.starts_with("<!doctype html>") && page.ends_with("<p>x</p><p>y</p></main></body></html>\n"));
        assert!(page.contains("<title>a &lt; b</title>") && page.contains("--width: 60rem"));
        let elsewhere = ["http", "//", "url(", "@import", "<script", "<link"];
        assert!(elsewhere.iter().all(|word| !page.contains(word)), "one file, no network");
        assert_eq!(STYLE.matches('{').count(), STYLE.matches('}').count());
    }

    proptest! {
        #[test]
        fn escaped_text_comes_back_and_has_no_markup(text in "\\PC{0,80}") {
            let escaped = escape(&text).to_string();
            prop_assert!(!escaped.contains(['<', '>', '"']));
            let back = escaped.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&");
            prop_assert_eq!(back, text);
        }
    }
}
