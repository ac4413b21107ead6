//! How a VM's guest and the host are connected, in a word.

/// How a VM's guest and the host are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Channel {
    /// No agent has been found in the guest: the host's own figures are all there is.
    Silent,
    /// Some vCPUs are paired, others not (yet).
    Partial,
    /// Every page that the guest registered is paired.
    Paired,
    /// The guest's RAM is private to the VMM: its preempt count is read, but nothing can be published to it.
    ReadOnly,
    /// The VM is being migrated or copied: the pairing was given up and comes back when that ends.
    Migrating,
    /// The guest offers what this host does not accept; the log says why.
    Refused,
    /// This host's kernel cannot hold a guest's page: it is watched, and told nothing.
    Unsupported,
}

impl Channel {
    /// All there are.
    pub const ALL: [Self; 7] =
        [Self::Silent, Self::Partial, Self::Paired, Self::ReadOnly, Self::Migrating, Self::Refused, Self::Unsupported];

    /// A word of at most 11 letters.
    pub fn word(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Partial => "partial",
            Self::Paired => "paired",
            Self::ReadOnly => "read-only",
            Self::Migrating => "migrating",
            Self::Refused => "refused",
            Self::Unsupported => "unsupported",
        }
    }
}
