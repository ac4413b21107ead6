//! Placeholders in the commands of experiment files.

/// The names that may stand in braces.
pub const PLACEHOLDERS: &[&str] = &["seconds", "warmup", "vcpus", "pcpus", "guest", "arm", "seed"];

/// What the placeholders stand for, where one command runs.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    /// Length of the measured window in seconds.
    pub(crate) seconds: f64,
    /// Time before it in seconds.
    pub(crate) warmup: f64,
    /// CPUs of the guest, or of the host machine where the command runs there.
    pub(crate) vcpus: u32,
    /// CPUs of the host machine.
    pub(crate) pcpus: u32,
    /// Name of the guest; `host` on the host machine.
    pub(crate) guest: String,
    /// Name of the arm.
    pub(crate) arm: String,
    /// The run's seed, mixed with the boot's number.
    pub(crate) seed: u64,
}

impl Values {
    /// The arguments with every placeholder replaced.
    pub(crate) fn expand(&self, argv: &[String]) -> Vec<String> {
        argv.iter().map(|argument| self.expand_one(argument)).collect()
    }

    fn expand_one(&self, argument: &str) -> String {
        let mut text = argument.to_owned();
        for name in PLACEHOLDERS {
            text = text.replace(&format!("{{{name}}}"), &self.value(name));
        }
        text
    }

    fn value(&self, name: &str) -> String {
        match name {
            "seconds" => self.seconds.to_string(),
            "warmup" => self.warmup.to_string(),
            "vcpus" => self.vcpus.to_string(),
            "pcpus" => self.pcpus.to_string(),
            "seed" => self.seed.to_string(),
            "arm" => self.arm.clone(),
            _ => self.guest.clone(),
        }
    }
}

/// The first word in braces that is no placeholder, so that a misspelt one is an error and not an argument. A shell's
/// `${name}` and `{a,b}` are left alone.
pub fn misspelt(argument: &str) -> Option<&str> {
    argument.match_indices('{').find_map(|(at, _)| {
        let (word, _) = argument[at + 1..].split_once('}')?;
        let shell = argument[..at].ends_with('$');
        let plain = !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        (plain && !shell && !PLACEHOLDERS.contains(&word)).then_some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_what_it_knows_and_finds_what_it_does_not() {
        let values =
            Values { seconds: 2.5, warmup: 0.5, vcpus: 4, pcpus: 2, guest: "a".into(), arm: "off".into(), seed: 7 };
        let argv = ["--seconds={seconds}", "{vcpus}/{guest}/{arm}", "${HOME}{x,y}"].map(str::to_owned);
        assert_eq!(values.expand(&argv), ["--seconds=2.5", "4/a/off", "${HOME}{x,y}"]);
        assert_eq!(misspelt("--seconds={second}"), Some("second"));
        assert_eq!(misspelt("{seconds} ${name} {1..3} {"), None);
    }
}
