// SPDX-License-Identifier: GPL-2.0-or-later

//! A condition with a begin and an end.

/// A condition that begins or ends when two readings in a row agree, so that one reading does not toggle it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    holds: bool,
    /// True if the last reading disagreed with `holds`.
    is_changing: bool,
}

impl Condition {
    /// Adds a reading. Returns `Some(true)` if the condition begins with it, and `Some(false)` if it ends.
    pub fn update(&mut self, reading: bool) -> Option<bool> {
        let disagrees = reading != self.holds;
        let changes = disagrees && self.is_changing;
        self.is_changing = disagrees && !changes;
        self.holds ^= changes;
        changes.then_some(self.holds)
    }

    /// Ends the condition. Returns true if it held.
    pub fn end(&mut self) -> bool {
        std::mem::take(self).holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_changes_after_two_equal_readings() {
        let mut condition = Condition::default();
        let readings = [
            (false, None),
            (true, None),
            (false, None),
            (true, None),
            (true, Some(true)),
            (true, None),
            (false, None),
            (true, None),
            (false, None),
            (false, Some(false)),
        ];
        for (at, (reading, expected)) in readings.into_iter().enumerate() {
            assert_eq!(condition.update(reading), expected, "reading {at}");
        }
        assert!(!condition.end());
        condition.update(true);
        condition.update(true);
        assert!(condition.end() && !condition.end());
    }
}
