//! What an agent's instances are labelled with.

use super::Agent;
use crate::producer::facts::Facts;
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

/// The text of an agent's labels, kept until they are others: pmcd asks for those of tens of thousands of ranges at a time.
#[derive(Debug, Default)]
pub(super) struct Kept(RefCell<Option<Made>>);

/// A text, and what it was made of beside the agent's name.
#[derive(Debug)]
struct Made {
    facts: Facts,
    source: &'static str,
    text: Rc<str>,
}

impl Agent {
    /// Its labels, a JSON object. Where /proc is not asked, or has not answered yet, they are what its file tells, and of a
    /// process that was started anew also what the one before was.
    #[must_use]
    pub fn labels(&self) -> serde_json::Value {
        self.labelled_facts()
            .labels(&self.name.raw, self.labelled_source())
    }

    /// The same as text.
    #[must_use]
    pub fn label_text(&self) -> Rc<str> {
        let (facts, source) = (self.labelled_facts(), self.labelled_source());
        let mut kept = self.label_text.0.borrow_mut();
        let made = kept.take_if(|made| (&made.facts, made.source) == (&*facts, source));
        let made = made.unwrap_or_else(|| Made {
            text: Rc::from(facts.labels(&self.name.raw, source).to_string()),
            facts: facts.into_owned(),
            source,
        });
        Rc::clone(&kept.insert(made).text)
    }

    /// What they are made of.
    pub(crate) fn labelled_facts(&self) -> Cow<'_, Facts> {
        match (self.own_facts(), &self.facts) {
            (Some(facts), _) => Cow::Borrowed(facts),
            (None, Some(old)) => Cow::Owned(self.facts_of_files(None).merge(old)),
            (None, None) => Cow::Owned(self.facts_of_files(None)),
        }
    }

    fn labelled_source(&self) -> &'static str {
        if self.has_stores() { "store" } else { "ring" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::record::{Entry, Lifecycle, Name};
    use std::time::Instant;

    #[test]
    fn the_text_is_that_of_the_labels_whatever_changes() {
        let name = Name {
            raw: "a".into(),
            instance: "a".into(),
            directory: "/tmp".into(),
            part: String::new(),
            owner: None,
        };
        let mut agent = Agent::new(name, Entry::default(), Instant::now());
        let user = |user: &str| Some(Facts::from([("user", Some(user.to_owned()))]));
        for facts in [None, user("x"), user("y"), None, user("y"), user("x")] {
            agent.set_facts(facts);
            let made = agent.label_text();
            assert_eq!(*made, *agent.labels().to_string());
            assert!(Rc::ptr_eq(&made, &agent.label_text()), "it is kept");
        }
        agent.entry.lifecycle = Lifecycle::Active;
        agent.outdate_facts();
        assert_eq!(*agent.label_text(), *agent.labels().to_string());
        assert!(agent.label_text().contains("\"x\""));
    }
}
