//! How many agents there are, and what is done for them.

use super::Agents;
use crate::agents::agent::Life;
use crate::event::EventType;
use crate::metrics::control::{AgentCounts, Effort};

impl Agents {
    /// How many agents there are of each kind.
    #[must_use]
    pub fn counts(&self) -> AgentCounts {
        let mut counts = AgentCounts {
            errors: EventType::errors()
                .iter()
                .map(|&error| self.books.host.get(error))
                .fold(0, u64::saturating_add),
            full: self.books.forgotten_full,
            unsupported: number(self.scanner.unsupported()),
            refused: number(self.scanner.refused()),
            silent: self.silent().map(|silent| number(silent.len())),
            ..AgentCounts::default()
        };
        for agent in self.agents.values() {
            counts.full = counts.full.saturating_add(agent.entry.full);
            if !agent.shown {
                continue;
            }
            match agent.state {
                Life::Live => counts.live += 1,
                Life::Idle => counts.idle += 1,
                Life::Exited => counts.exited += 1,
                Life::Unknown => counts.unknown += 1,
            }
        }
        counts
    }

    /// What there is to be done, and was done since the start.
    #[must_use]
    pub fn effort(&self) -> Effort {
        let (directories, left_out, missing) = self.scanner.directories();
        Effort {
            events: self.books.counted,
            rings: number(self.attached.len()),
            known: number(self.agents.len()),
            places: number(self.max_rings),
            taken: number(self.seats.total()),
            refused_places: self.refused_places,
            directories: number(directories),
            left_out,
            missing: number(missing),
            remembered: number(self.scanner.remembered()),
            surveys: self.surveys,
            survey_time: self.survey_time,
        }
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
