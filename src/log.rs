//! The log, on standard error, in the format of PCP's own (pmNotifyErr(3)): `[Sat Nov 21 01:30:00] pmdanixl(4242) Info: ...`.
//!
//! Nothing rotates the log of a running PMDA, and strangers can cause lines, so that their number is limited, and the length of
//! them all.

use budget::{Budget, Fate, Line};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::Write as _;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use tracing::{Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{self as lines, FmtContext, time::ChronoLocal, time::FormatTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;

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

/// Lines that were not written since the start.
#[must_use]
pub fn left_out() -> u64 {
    BUDGET.with_borrow(Budget::left_out)
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

/// What is logged: `DEBUG` is everything, and without limit.
static FILTER: OnceLock<Handle<LevelFilter, Registry>> = OnceLock::new();

/// True if everything is logged.
#[must_use]
pub fn is_debug() -> bool {
    FILTER.get().and_then(Handle::clone_current) == Some(LevelFilter::DEBUG)
}

/// Logs everything from now on, and without limit, or no longer does so.
pub fn set_debug(debug: bool) {
    if let Some(filter) = FILTER.get() {
        // It fails only after the log has ended.
        let _ = filter.reload(level(debug));
    }
}

fn level(debug: bool) -> LevelFilter {
    match debug {
        true => LevelFilter::DEBUG,
        false => LevelFilter::INFO,
    }
}

/// Sets the log up. With `debug` everything is logged, and without limit, until [`set_debug`] says otherwise.
pub fn start(debug: bool) {
    let (filter, handle) = reload::Layer::new(level(debug));
    let _ = FILTER.set(handle);
    let lines = lines::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // What cannot be logged is lost: the default is to say so on the standard error that cannot be written to, and to
        // end the process over that.
        .log_internal_errors(false)
        .event_format(PcpFormat);
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .init();
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

/// PCP's format, with limits.
#[derive(Debug)]
struct PcpFormat;

impl PcpFormat {
    fn prefix(writer: &mut Writer, severity: &str) -> fmt::Result {
        writer.write_char('[')?;
        ChronoLocal::new("%a %b %e %H:%M:%S".into()).format_time(writer)?;
        write!(writer, "] pmdanixl({}) {severity}: ", std::process::id())
    }
}

impl<S, N> FormatEvent<S, N> for PcpFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<S, N>,
        mut writer: Writer,
        event: &Event,
    ) -> fmt::Result {
        let severity = match *event.metadata().level() {
            Level::ERROR => "Error",
            Level::WARN => "Warning",
            Level::INFO => "Info",
            _ => "Debug",
        };
        let line = Line {
            level: *event.metadata().level(),
            about: ABOUT.get(),
            minute: chrono::Utc::now().timestamp() / 60,
        };
        let fate = match is_debug() {
            true => Fate::Written,
            false => BUDGET.with_borrow_mut(|budget| budget.judge(&line)),
        };
        let note = match fate {
            Fate::LeftOut => return Ok(()),
            Fate::Written => None,
            Fate::Last(note) => Some(note),
            Fate::Full => {
                Self::prefix(&mut writer, "Warning")?;
                return writeln!(
                    writer,
                    "lines are left out: this log is {} MiB long, or half of that is about files; run Install to begin another",
                    budget::MAX_BYTES >> 20
                );
            }
        };
        let mut text = String::new();
        let mut lines = Writer::new(&mut text);
        Self::prefix(&mut lines, severity)?;
        context.format_fields(lines.by_ref(), event)?;
        writeln!(lines)?;
        if let Some(note) = note {
            Self::prefix(&mut lines, severity)?;
            writeln!(lines, "{note}")?;
        }
        BUDGET.with_borrow_mut(|budget| budget.add(&line, text.len()));
        writer.write_str(&text)
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
