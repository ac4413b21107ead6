//! Times of day in a daemon's log, whose lines begin with `2026-01-31T12:34:56.789Z`.

use entrain_lab_machine::Result;

use super::product::unmet;

/// What the daemon logs when it has loaded all, and when it has paired.
pub(super) const READY: &str = "pCPUs; status in";
pub(super) const PAIRED: &str = ": paired with";

/// When the log says so for the first time, seconds of the day.
pub(super) fn first(log: &str, text: &str) -> Result<f64> {
    when(log, log.lines(), text)
}

/// When the log says so for the last time, seconds of the day.
pub(super) fn last(log: &str, text: &str) -> Result<f64> {
    when(log, log.lines().rev(), text)
}

fn when<'a>(log: &str, mut lines: impl Iterator<Item = &'a str>, text: &str) -> Result<f64> {
    let time = |line: &str| seconds(line.split_whitespace().next()?.split_once('T')?.1.trim_end_matches('Z'));
    let found = lines.find(|line| line.contains(text)).and_then(time);
    found.ok_or_else(|| unmet(format!("the daemon's log does not say '{text}': {}", log.trim())))
}

/// `12:34:56.789` as seconds.
pub(super) fn seconds(time: &str) -> Option<f64> {
    let mut parts = time.split(':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    Some(hours * 3600.0 + minutes * 60.0 + seconds)
}

/// From one time of day to another, which may be on the next day or a little earlier.
pub(super) fn since(from: f64, to: f64) -> f64 {
    const DAY: f64 = 86_400.0;
    (to - from + DAY / 2.0).rem_euclid(DAY) - DAY / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_compared() {
        let log = "2026-11-22T23:59:59.500Z  INFO host: a: paired with 2 of 2 vCPUs\nnonsense: paired with\n\
                   2026-11-23T00:00:00.250Z  INFO host: a: its memory is being copied (live migration); let go of its pages\n\
                   2026-11-23T00:00:00.750Z  INFO host: a: paired with 2 of 2 vCPUs\n";
        let let_go = last(log, "let go of its pages").unwrap();
        assert_eq!(since(first(log, PAIRED).unwrap(), let_go), 0.75);
        assert_eq!(since(let_go, first(log, PAIRED).unwrap()), -0.75);
        assert_eq!(since(let_go, last(log, PAIRED).unwrap()), 0.5);
        assert!(last(log, "never said").is_err());
    }
}
