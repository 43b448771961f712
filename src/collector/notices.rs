// SPDX-License-Identifier: GPL-2.0-or-later

//! Log lines about attached files. A scan can attach thousands, so that only the first lines of a kind are written, and
//! a line with the number of the others.

use crate::log;
use std::collections::BTreeMap;
use std::fmt::Display;

/// Number of lines of each kind about the files of a user in one scan. Debug mode has all.
const SHOWN: usize = 10;

/// Kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NoticeKind {
    /// A file was attached.
    Attached,
    /// A ring was attached that is not drained.
    NotDrained,
    /// A ring was full.
    Full,
}

/// Lines about the files that a scan has attached.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Number of lines, written or not, by owner and kind.
    lines: BTreeMap<(u32, NoticeKind), usize>,
}

impl Notices {
    /// Logs a line about a file of a user, unless the scan has had enough lines of this kind.
    pub fn log(&mut self, uid: u32, kind: NoticeKind, line: impl Display) {
        let count = self.lines.entry((uid, kind)).or_default();
        *count += 1;
        if *count <= SHOWN || log::is_debug() {
            write(kind, line);
        }
    }

    /// Logs how many lines of a scan were left out. Called at its end.
    pub fn end_scan(&mut self) {
        for ((uid, kind), count) in std::mem::take(&mut self.lines) {
            if count <= SHOWN || log::is_debug() {
                continue;
            }
            let _about = log::about(Some(uid));
            let what = match kind {
                NoticeKind::Attached => "more files attached",
                NoticeKind::NotDrained => "more rings attached that are not drained",
                NoticeKind::Full => {
                    "more rings that were full, so that NIXL may have dropped events"
                }
            };
            let more = count - SHOWN;
            write(
                kind,
                format_args!("agents of uid {uid}: {what}: {more}; pmdanixl --check lists all"),
            );
        }
    }
}

fn write(kind: NoticeKind, line: impl Display) {
    match kind {
        NoticeKind::Attached | NoticeKind::NotDrained => tracing::info!("{line}"),
        NoticeKind::Full => tracing::warn!("{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn scan_of_many_files_has_few_lines() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&lines);
        log::tests::with_events(
            move |event| seen.lock().expect("one thread").push(event.to_owned()),
            || {
                let mut notices = Notices::default();
                for files in [4, 2, 200] {
                    for file in 0..files {
                        notices.log(7, NoticeKind::Attached, format_args!("agent {file}"));
                    }
                    notices.end_scan();
                }
            },
        );
        let lines = lines.lock().expect("one thread");
        assert_eq!(lines.len(), 4 + 2 + 11, "{lines:#?}");
        let last = lines.last().expect("one");
        assert!(
            last.contains("agents of uid 7: more files attached: 190"),
            "{last}"
        );
    }
}
