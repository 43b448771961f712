//! The log, on standard error, in the format of PCP's own (pmNotifyErr(3)): `[Sat Nov 21 01:30:00] pmdanixl(4242) Info: ...`.
//!
//! Nothing rotates the log of a running PMDA, and strangers can cause lines, so that their number is limited.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use tracing::{Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, time::ChronoLocal, time::FormatTime};
use tracing_subscriber::registry::LookupSpan;

/// Lines in a minute, errors and debugging left out; the rest are counted and said in one line.
const LINES_PER_MINUTE: u64 = 120;

/// Sets the log up. With `debug` everything is logged, and without limit.
pub fn start(debug: bool) {
    let level = if debug {
        LevelFilter::DEBUG
    } else {
        LevelFilter::INFO
    };
    let limit = if debug { u64::MAX } else { LINES_PER_MINUTE };
    let format = PcpFormat {
        limit,
        minute: AtomicI64::default(),
        lines: AtomicU64::default(),
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .event_format(format)
        .init();
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!("internal error, please report it: {panic}")
    }));
}

/// PCP's format, and the limit.
#[derive(Debug)]
struct PcpFormat {
    limit: u64,
    minute: AtomicI64,
    lines: AtomicU64,
}

impl PcpFormat {
    /// Counts a line: whether it is written, and how many of the minute before were not.
    fn admit(&self, minute: i64) -> (bool, u64) {
        let mut lost = 0;
        // One thread logs, so nothing comes between these.
        if self.minute.swap(minute, Relaxed) != minute {
            lost = self.lines.swap(0, Relaxed).saturating_sub(self.limit);
        }
        (self.lines.fetch_add(1, Relaxed) < self.limit, lost)
    }

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
        let (admitted, lost) = self.admit(chrono::Utc::now().timestamp() / 60);
        if lost > 0 {
            Self::prefix(&mut writer, "Warning")?;
            writeln!(writer, "{lost} more lines in a minute were not logged")?;
        }
        if !admitted && *event.metadata().level() != Level::ERROR {
            return Ok(());
        }
        Self::prefix(&mut writer, severity)?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_counted_not_written() {
        let format = PcpFormat {
            limit: 2,
            minute: AtomicI64::new(7),
            lines: AtomicU64::default(),
        };
        let admitted: Vec<bool> = (0..5).map(|_| format.admit(7).0).collect();
        assert_eq!(admitted, [true, true, false, false, false]);
        assert_eq!(format.admit(8), (true, 3));
        assert_eq!(format.admit(8), (true, 0));
    }
}
