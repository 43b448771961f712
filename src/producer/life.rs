//! Whether an agent lives.

/// What `nixl.agent.state` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Life {
    /// It is not known who has its ring or store.
    #[default]
    Unknown = 0,
    /// It has its ring or store.
    Live = 1,
    /// It has it, and says nothing.
    Idle = 2,
    /// Nobody has it, or only who reads it.
    Exited = 3,
}

impl Life {
    /// In a word.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Life::Exited => "exited",
            Life::Unknown => "unknown",
            Life::Idle => "idle",
            Life::Live => "live",
        }
    }

    /// Of an agent's files, the one that says most for its life counts.
    #[must_use]
    pub fn rank(self) -> u32 {
        match self {
            Life::Exited => 0,
            Life::Unknown => 1,
            Life::Idle => 2,
            Life::Live => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_live_ring_outweighs_others() {
        use Life::{Exited, Live, Unknown};
        let most = |lives: &[Life]| lives.iter().copied().max_by_key(|life| life.rank());
        assert_eq!(most(&[Exited, Live, Unknown]), Some(Live));
        assert_eq!(most(&[Exited, Unknown]), Some(Unknown));
    }
}
