// SPDX-License-Identifier: GPL-2.0-or-later

//! What is known of the process that writes an agent's files, and the labels that are made of that, cached.

use super::Agent;
use crate::entry::Name;
use crate::procfs::facts::Facts;
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

/// What is known of the process that writes an agent's files: pod, container, user and others.
#[derive(Debug, Default)]
pub(crate) enum ProcessFacts {
    /// No process scan has found the process yet.
    #[default]
    Unknown,
    /// Facts of the process that writes now.
    Current(Facts),
    /// Facts of the process before. An instance keeps its labels until the new process is found.
    Outdated(Facts),
}

impl ProcessFacts {
    /// Facts of the process that writes now.
    pub fn current(&self) -> Option<&Facts> {
        match self {
            Self::Current(facts) => Some(facts),
            Self::Unknown | Self::Outdated(_) => None,
        }
    }

    /// Facts of that process or of the one before it.
    pub fn any(&self) -> Option<&Facts> {
        match self {
            Self::Unknown => None,
            Self::Current(facts) | Self::Outdated(facts) => Some(facts),
        }
    }

    /// Notes that another process writes from now on. The facts are kept only if `are_shown`.
    pub fn outdate(&mut self, are_shown: bool) {
        *self = match std::mem::take(self) {
            Self::Current(facts) | Self::Outdated(facts) if are_shown => Self::Outdated(facts),
            _ => Self::Unknown,
        };
    }
}

/// Facts, and the labels as JSON that were made of them.
pub(super) type CachedLabels = RefCell<Option<(Facts, Rc<str>)>>;

impl Agent {
    /// Returns the labels as a JSON object. Until a process scan has found the process, they are what the agent's files
    /// tell, with the facts of the process before.
    #[must_use]
    pub fn label_text(&self) -> Rc<str> {
        let facts = self.labelled_facts();
        let mut cached = self.cached_labels.borrow_mut();
        let made = cached.take_if(|(of, _)| *of == *facts);
        let made = made.unwrap_or_else(|| {
            let Name { raw, owner, .. } = &self.name;
            let labels = facts.labels(raw, *owner, self.telemetry());
            (facts.into_owned(), labels.to_string().into())
        });
        Rc::clone(&cached.insert(made).1)
    }

    /// Returns the facts that the labels are made of.
    pub(crate) fn labelled_facts(&self) -> Cow<'_, Facts> {
        match &self.facts {
            ProcessFacts::Current(facts) => Cow::Borrowed(facts),
            ProcessFacts::Outdated(old) => Cow::Owned(self.facts_of_files(None).merge(old)),
            ProcessFacts::Unknown => Cow::Owned(self.facts_of_files(None)),
        }
    }

    /// Returns `ring` or `store`, by where the values come from.
    #[must_use]
    pub fn telemetry(&self) -> &'static str {
        if self.has_stores() { "store" } else { "ring" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Entry, Lifecycle};
    use std::time::Instant;

    fn labels(agent: &Agent) -> String {
        let facts = agent.labelled_facts();
        let Name { raw, owner, .. } = &agent.name;
        facts.labels(raw, *owner, "ring").to_string()
    }

    #[test]
    fn cached_label_text_follows_each_change_of_facts() {
        let name = Name {
            raw: "a".into(),
            instance: "a".into(),
            directory: "/tmp".into(),
            part: String::new(),
            owner: 0,
        };
        let mut agent = Agent::new(name, Entry::default(), Instant::now());
        let user = |user: &str| {
            let mut facts = Facts::default();
            facts.set("user", Some(user));
            Some(facts)
        };
        for facts in [None, user("x"), user("y"), None, user("y"), user("x")] {
            agent.set_facts(facts);
            let made = agent.label_text();
            assert_eq!(*made, labels(&agent));
            assert!(Rc::ptr_eq(&made, &agent.label_text()), "it is cached");
        }
        agent.entry.lifecycle = Lifecycle::Active;
        agent.outdate_facts();
        assert_eq!(*agent.label_text(), labels(&agent));
        assert!(agent.label_text().contains("\"x\""));
    }
}
