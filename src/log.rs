//! The log, on standard error, in the format of PCP's own (pmNotifyErr(3)): `[Sat Nov 21 01:30:00] pmdanixl(4242) Info: ...`.
//!
//! Nothing rotates the log of a running PMDA, and strangers can cause lines, so that their number is limited, and the length of
//! them all.

use std::fmt;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber, callsite, level_filters::LevelFilter};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{self as lines, FmtContext, time::ChronoLocal, time::FormatTime};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Lines in a minute, of information and of warnings each; the last of them says that there may be more. Errors and debugging
/// are not limited.
const LINES_PER_MINUTE: u64 = 60;

/// Bytes of all lines of one run; of what comes then, a line a minute says how much it was. Debugging is not limited.
const MAX_BYTES: u64 = 16 << 20;

/// Whether everything is logged, and without limit. Nothing is ordered by it: a line more or less is no harm.
static DEBUG: AtomicBool = AtomicBool::new(false);

/// Whether everything is logged.
#[must_use]
pub fn is_debug() -> bool {
    DEBUG.load(Relaxed)
}

/// Whether everything is logged from now on, and without limit.
pub fn set_debug(debug: bool) {
    DEBUG.store(debug, Relaxed);
    // Each place that logs remembers whether it does.
    callsite::rebuild_interest_cache();
}

/// Sets the log up. With `debug` everything is logged, and without limit, until [`set_debug`] says otherwise.
pub fn start(debug: bool) {
    set_debug(debug);
    let format = PcpFormat {
        infos: Limit::new(LINES_PER_MINUTE),
        warnings: Limit::new(LINES_PER_MINUTE),
        end: End::new(MAX_BYTES),
    };
    let lines = lines::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // What cannot be logged is lost: the default is to say so on the standard error that cannot be written to, and to
        // end the process over that.
        .log_internal_errors(false)
        .event_format(format);
    tracing_subscriber::registry()
        .with(Wanted)
        .with(lines)
        .init();
    std::panic::set_hook(Box::new(|panic| {
        let line = format!(
            "pmdanixl({}) Error: internal error, please report it: {panic}\n",
            std::process::id()
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
    }));
}

/// Keeps debug messages out unless they are asked for, so early that they cost nothing.
#[derive(Debug)]
struct Wanted;

impl Wanted {
    fn level() -> LevelFilter {
        if is_debug() {
            LevelFilter::DEBUG
        } else {
            LevelFilter::INFO
        }
    }
}

impl<S: Subscriber> Layer<S> for Wanted {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if *metadata.level() <= Self::level() {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata, _context: Context<S>) -> bool {
        *metadata.level() <= Self::level()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(Self::level())
    }
}

/// PCP's format, with a limit on what strangers can cause.
#[derive(Debug)]
struct PcpFormat {
    infos: Limit,
    warnings: Limit,
    end: End,
}

impl PcpFormat {
    fn prefix(writer: &mut Writer, severity: &str) -> fmt::Result {
        writer.write_char('[')?;
        ChronoLocal::new("%a %b %e %H:%M:%S".into()).format_time(writer)?;
        write!(writer, "] pmdanixl({}) {severity}: ", std::process::id())
    }
}

/// How many lines there were in a minute.
#[derive(Debug)]
struct Limit {
    lines_per_minute: u64,
    minute: AtomicI64,
    lines: AtomicU64,
}

impl Limit {
    fn new(lines_per_minute: u64) -> Self {
        Self {
            lines_per_minute,
            minute: AtomicI64::default(),
            lines: AtomicU64::default(),
        }
    }

    /// Counts a line, and says what is to be done with it.
    fn admit(&self, minute: i64) -> Admitted {
        // One thread logs, so nothing comes between these.
        if self.minute.swap(minute, Relaxed) != minute {
            self.lines.store(0, Relaxed);
        }
        match self.lines.fetch_add(1, Relaxed) + 1 {
            line if line < self.lines_per_minute => Admitted::Line,
            line if line == self.lines_per_minute => Admitted::Last,
            _ => Admitted::No,
        }
    }
}

/// How long the log is, and what was kept out of it since it is long enough.
#[derive(Debug)]
struct End {
    max_bytes: u64,
    bytes: AtomicU64,
    minute: AtomicI64,
    left_out: AtomicU64,
}

impl End {
    fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            bytes: AtomicU64::default(),
            minute: AtomicI64::default(),
            left_out: AtomicU64::default(),
        }
    }

    /// Whether there is room for more.
    fn is_reached(&self) -> bool {
        self.bytes.load(Relaxed) >= self.max_bytes
    }

    /// Counts a line that is written.
    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts one that is not; in each minute, how many it were since that was last said.
    fn leave_out(&self, minute: i64) -> Option<u64> {
        self.left_out.fetch_add(1, Relaxed);
        let is_new = self.minute.swap(minute, Relaxed) != minute;
        is_new.then(|| self.left_out.swap(0, Relaxed))
    }
}

/// What is done with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admitted {
    /// It is written.
    Line,
    /// It is written, with a note that no more of its kind are in this minute.
    Last,
    /// It is not written.
    No,
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
        let limit = match *event.metadata().level() {
            _ if is_debug() => None,
            Level::WARN => Some(&self.warnings),
            Level::INFO => Some(&self.infos),
            _ => None,
        };
        let minute = chrono::Utc::now().timestamp() / 60;
        let admitted = limit.map_or(Admitted::Line, |limit| limit.admit(minute));
        if admitted == Admitted::No {
            return Ok(());
        }
        if !is_debug() && self.end.is_reached() {
            let Some(left_out) = self.end.leave_out(minute) else {
                return Ok(());
            };
            Self::prefix(&mut writer, "Warning")?;
            return writeln!(
                writer,
                "{left_out} lines were left out: this log is {} MiB long; run Install to begin another",
                self.end.max_bytes >> 20
            );
        }
        let mut text = String::new();
        let mut lines = Writer::new(&mut text);
        Self::prefix(&mut lines, severity)?;
        context.format_fields(lines.by_ref(), event)?;
        writeln!(lines)?;
        if admitted == Admitted::Last {
            Self::prefix(&mut lines, severity)?;
            writeln!(
                lines,
                "further lines like these are not logged in this minute"
            )?;
        }
        self.end.add(text.len());
        writer.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_that_is_written_in_a_minute_says_so() {
        let limit = Limit::new(3);
        let admitted = [7, 7, 7, 7, 7, 8].map(|minute| limit.admit(minute));
        let expected = [
            Admitted::Line,
            Admitted::Line,
            Admitted::Last,
            Admitted::No,
            Admitted::No,
            Admitted::Line,
        ];
        assert_eq!(admitted, expected);
    }

    #[test]
    fn a_log_that_is_long_enough_says_once_a_minute_what_it_left_out() {
        let end = End::new(100);
        end.add(99);
        assert!(!end.is_reached());
        end.add(1);
        assert!(end.is_reached());
        let said = [7, 7, 7, 8, 8, 10].map(|minute| end.leave_out(minute));
        assert_eq!(said, [Some(1), None, None, Some(3), None, Some(2)]);
    }
}
