// SPDX-License-Identifier: GPL-2.0-or-later

//! The log, on standard error, in the format of PCP's own (pmNotifyErr(3)): `[Sat Nov 21 01:30:00] pmdanixl(4242) Info: ...`.
//!
//! Nothing rotates the log of a running PMDA, and other users can cause lines. So the number of lines and their total length have
//! limits.

use crate::base::text;
use budget::Budget;
use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Event, Level, Metadata};

mod budget;

thread_local! {
    /// Owner of the files that lines are about at the moment. `None`: lines are about the daemon itself.
    static ABOUT: Cell<Option<u32>> = const { Cell::new(None) };
    /// Limits of lines, and what was logged. One thread logs.
    static BUDGET: RefCell<Budget> = RefCell::default();
}

/// Stands for the owner if any user may have caused the line.
const ANY_USER: u32 = u32::MAX;
/// Limit of logged panics in one run.
const MAX_PANICS: u32 = 100;
static PANICS: AtomicU32 = AtomicU32::new(0);
/// Limit of the length of a path in a line, in bytes.
const MAX_SHOWN: usize = 200;

/// Guard of [`about`]. When it is dropped, lines are about what they were about before.
#[derive(Debug)]
pub struct About(Option<u32>);

/// Counts lines against the limits of a user whose files they are about, until the guard is dropped. `None`: any user that may
/// write to a scanned directory.
#[must_use]
pub fn about(uid: Option<u32>) -> About {
    About(ABOUT.replace(Some(uid.unwrap_or(ANY_USER))))
}

impl Drop for About {
    fn drop(&mut self) {
        ABOUT.set(self.0);
    }
}

/// Returns a path as text for a line: quoted, with control and invisible characters escaped, and without its middle if it is long.
#[must_use]
pub fn shown(path: &Path) -> String {
    let text = text::one_line(&format!("{path:?}"));
    if text.len() <= MAX_SHOWN {
        return text;
    }
    // Debug does not escape printable characters, which may have several bytes.
    let first = (0..=MAX_SHOWN / 2)
        .rev()
        .find(|&at| text.is_char_boundary(at));
    let last = (text.len() - MAX_SHOWN / 2..text.len()).find(|&at| text.is_char_boundary(at));
    format!(
        "{}...{}",
        &text[..first.unwrap_or(0)],
        &text[last.unwrap_or(text.len())..]
    )
}

/// True if debug messages are logged too, and nothing is limited.
static DEBUG: AtomicBool = AtomicBool::new(false);

/// True if debug messages are logged too, and nothing is limited.
#[must_use]
pub fn is_debug() -> bool {
    DEBUG.load(Relaxed)
}

/// Turns debug messages on, and limits off, or back.
pub fn set_debug(debug: bool) {
    DEBUG.store(debug, Relaxed);
}

/// Starts the log. `debug` is as in [`set_debug`].
pub fn start(debug: bool) {
    set_debug(debug);
    // It fails only if there is a log already.
    let _ = tracing::subscriber::set_global_default(PcpLog);
    std::panic::set_hook(Box::new(|panic| {
        // A panic over a file is caught, and the file may cause it again.
        let count = PANICS.fetch_add(1, Relaxed);
        if count >= MAX_PANICS {
            return;
        }
        let line = format!(
            "pmdanixl({}) Error: internal error, please report it: {panic}\n",
            std::process::id()
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
    }));
}

/// The log in PCP's format, with limits.
struct PcpLog;

impl Subscriber for PcpLog {
    fn register_callsite(&self, _: &'static Metadata) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata) -> bool {
        *metadata.level() <= Level::INFO || is_debug()
    }

    fn event(&self, event: &Event) {
        let (now, level) = (chrono::Local::now(), *event.metadata().level());
        let (about, minute) = (ABOUT.get(), now.timestamp() / 60);
        let mut message = Message::default();
        event.record(&mut message);
        let severity = match level {
            Level::ERROR => "Error",
            Level::WARN => "Warning",
            Level::INFO => "Info",
            _ => "Debug",
        };
        let (time, pid) = (now.format("%a %b %e %H:%M:%S"), std::process::id());
        let line = format!("[{time}] pmdanixl({pid}) {severity}: {}", message.0);
        let note = match is_debug() {
            true => Some(""),
            false => {
                BUDGET.with_borrow_mut(|budget| budget.admit(about, level, minute, line.len()))
            }
        };
        if let Some(note) = note {
            // What cannot be logged is lost.
            let _ = std::io::stderr().write_all(format!("{line}{note}\n").as_bytes());
        }
    }

    // The program has no spans.
    fn new_span(&self, _: &Attributes) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The text of a line.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = text::one_line(&format!("{value:?}"));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::LazyLock;
    use tracing::Dispatch;
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    struct Lines<F>(F);

    impl<S: Subscriber, F: Fn(&str) + 'static> Layer<S> for Lines<F> {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            (self.0)(&format!("{event:?}"));
        }
    }

    /// Returns the owner of the files that lines are about at the moment.
    pub(crate) fn current_owner() -> Option<u32> {
        ABOUT.get()
    }

    /// Runs a closure, and calls `seen` with the `Debug` text of each event that it logs. Returns the result of the closure.
    pub(crate) fn with_events<T>(
        seen: impl Fn(&str) + Send + Sync + 'static,
        run: impl FnOnce() -> T,
    ) -> T {
        // If there is one subscriber only, tracing asks that of the current thread what is logged, and caches the answer for all
        // threads: in another test it has none.
        static SECOND: LazyLock<Dispatch> =
            LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));
        LazyLock::force(&SECOND);
        let log = tracing_subscriber::registry().with(Lines(seen));
        tracing::subscriber::with_default(log, run)
    }

    #[test]
    fn dropped_guard_restores_what_lines_are_about() {
        let outer = about(Some(1));
        {
            let _inner = about(None);
            assert_eq!(ABOUT.get(), Some(ANY_USER));
        }
        assert_eq!(ABOUT.get(), Some(1));
        drop(outer);
        assert_eq!(ABOUT.get(), None);
    }

    #[test]
    fn invisible_characters_of_a_path_are_escaped() {
        let path = Path::new("/x/\u{202e}\u{3164}\u{fe0f}");
        assert_eq!(shown(path), r#""/x/\u{202e}\u{3164}\u{fe0f}""#);
    }

    #[test]
    fn long_path_is_shown_without_its_middle() {
        let short = Path::new("/dev/shm/nixl/agent\n");
        assert_eq!(shown(short), r#""/dev/shm/nixl/agent\n""#);
        let long = PathBuf::from(format!("/dev/shm/{}end", "\u{200b}".repeat(80)));
        let cut = shown(&long);
        assert!(
            cut.len() <= MAX_SHOWN + 3 && cut.starts_with("\"/dev/shm/"),
            "{cut}"
        );
        assert!(cut.contains("...") && cut.ends_with("end\""), "{cut}");
    }
}
