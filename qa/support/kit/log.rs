// SPDX-License-Identifier: GPL-2.0-or-later

//! Log of a daemon in the process of a test: the lines that the thread of the test causes.

use super::Core;
use std::cell::RefCell;
use std::io;
use std::sync::Once;
use tracing::Level;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

thread_local! {
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Writer that appends to the lines of the current thread.
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts to collect the log lines of this thread.
pub fn collect() {
    // One subscriber for the process: a callsite caches whether it is enabled, for all threads.
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let lines = fmt::layer().with_writer(|| Lines).with_ansi(false);
        tracing_subscriber::registry()
            .with(filter_fn(|of| of.is_event() && *of.level() <= Level::INFO))
            .with(lines.with_target(false).without_time())
            .init();
    });
    LINES.take();
}

impl Core {
    /// Removes and returns the lines so far: level and message, with `DIR` for the directory of the test.
    pub fn take_log(&self) -> Vec<String> {
        let lines = String::from_utf8(LINES.take()).expect("UTF-8");
        let lines = lines.lines().map(|line| self.normalised(line.trim()));
        lines.collect()
    }

    /// Replaces the directory of the test with `DIR`.
    pub fn normalised(&self, text: &str) -> String {
        let dir = self.home.dir.as_ref().expect("a directory of its own");
        let dir = dir.path().to_str().expect("UTF-8");
        text.replace(dir, "DIR")
    }
}
