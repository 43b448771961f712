//! The log, on standard error, in the format of PCP's own (pmNotifyErr(3)): `[Sat Nov 21 01:30:00] pmdanixl(4242) Info: ...`.
//!
//! Nothing rotates the log of a running PMDA, and other users can cause lines, so that their number is limited, and the length of
//! them all.

use budget::Budget;
use std::cell::{Cell, RefCell};
use std::fmt::{Debug, Write as _};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Event, Level, Metadata};

mod budget;

thread_local! {
    /// Whose files the lines are about at the moment.
    static ABOUT: Cell<Option<u32>> = const { Cell::new(None) };
    /// What may be logged. One thread logs.
    static BUDGET: RefCell<Budget> = RefCell::default();
}

/// No user in particular has caused what is said, but some user may have.
const ANYBODY: u32 = u32::MAX;
/// Errors of the program itself that are logged in one run.
const MOST_PANICS: u32 = 100;
static PANICS: AtomicU32 = AtomicU32::new(0);
/// Bytes of a path that are shown.
const MAX_SHOWN: usize = 200;

/// Until it is dropped, lines are about files of one user.
#[derive(Debug)]
pub struct About(Option<u32>);

/// What is logged from now on is about files of this user, whose lines are limited; `None`: of anybody who may write to where
/// files are looked for.
#[must_use]
pub fn about(uid: Option<u32>) -> About {
    About(ABOUT.replace(Some(uid.unwrap_or(ANYBODY))))
}

impl Drop for About {
    fn drop(&mut self) {
        ABOUT.set(self.0);
    }
}

/// A path as it stands in a line: quoted, with what could break the line escaped, and its midst left out if it is long.
#[must_use]
pub fn shown(path: &Path) -> String {
    let text = format!("{path:?}");
    if text.len() <= MAX_SHOWN {
        return text;
    }
    // Debug leaves what is printable as it is, of any script.
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

/// True if everything is logged, and without limit.
static DEBUG: AtomicBool = AtomicBool::new(false);

/// True if everything is logged.
#[must_use]
pub fn is_debug() -> bool {
    DEBUG.load(Relaxed)
}

/// Logs everything from now on, and without limit, or no longer does so.
pub fn set_debug(debug: bool) {
    DEBUG.store(debug, Relaxed);
}

/// Sets the log up. With `debug` everything is logged, and without limit, until [`set_debug`] says otherwise.
pub fn start(debug: bool) {
    set_debug(debug);
    // It fails only where there is a log already.
    let _ = tracing::subscriber::set_global_default(PcpLog);
    std::panic::set_hook(Box::new(|panic| {
        // Each is guarded, and may come again with the same file.
        let count = PANICS.fetch_add(1, Relaxed);
        if count >= MOST_PANICS {
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
        let (is_written, note) = match is_debug() {
            true => (true, None),
            false => BUDGET.with_borrow_mut(|budget| budget.judge(about, level, minute)),
        };
        let mut message = Message::default();
        if is_written {
            event.record(&mut message);
        }
        let severity = match level {
            Level::ERROR => "Error",
            Level::WARN => "Warning",
            Level::INFO => "Info",
            _ => "Debug",
        };
        let (time, pid) = (now.format("%a %b %e %H:%M:%S"), std::process::id());
        let mut text = String::new();
        for line in message.0.into_iter().chain(note) {
            let _ = writeln!(text, "[{time}] pmdanixl({pid}) {severity}: {line}");
        }
        BUDGET.with_borrow_mut(|budget| budget.add(about, text.len()));
        // What cannot be logged is lost.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    // There are no spans.
    fn new_span(&self, _: &Attributes) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The text of a line, in which nothing moves a cursor or ends the line.
#[derive(Default)]
struct Message(Option<String>);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let text = format!("{value:?}");
            let escaped = |char: char| match char.is_control() {
                true => char.escape_default().to_string(),
                false => char.into(),
            };
            self.0 = Some(text.chars().map(escaped).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn what_a_line_is_about_ends_with_what_it_was_said_for() {
        let outer = about(Some(1));
        {
            let _inner = about(None);
            assert_eq!(ABOUT.get(), Some(ANYBODY));
        }
        assert_eq!(ABOUT.get(), Some(1));
        drop(outer);
        assert_eq!(ABOUT.get(), None);
    }

    #[test]
    fn a_long_path_is_cut_in_its_midst() {
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
