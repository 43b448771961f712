// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: its output, one line for each `writeln!`.

use crate::base::text;
use std::fmt::Arguments;
use std::io::{self, Write};

/// Output of lines. Control and invisible characters in a line are escaped: names in it are untrusted, and a line may
/// have several.
#[derive(Debug)]
pub struct Output<W>(pub W);

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    /// Writes one line. `writeln!` calls this once, with the line end.
    fn write_fmt(&mut self, line: Arguments) -> io::Result<()> {
        let line = line.to_string();
        let line = text::one_line(line.strip_suffix('\n').unwrap_or(&line));
        self.0.write_all((line + "\n").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_untrusted_text_stays_one_line() {
        let mut written = Vec::new();
        let mut output = Output(&mut written);
        let out: &mut dyn Write = &mut output;
        for name in [
            "a\nproblem: b",
            "\u{1b}[2J",
            "x\u{202e}y\u{3164}",
            "\"ö\"\\",
        ] {
            writeln!(out, "name {name} of {name}").expect("written");
        }
        let expected = "name a\\nproblem: b of a\\nproblem: b\n\
            name \\u{1b}[2J of \\u{1b}[2J\n\
            name x\\u{202e}y\\u{3164} of x\\u{202e}y\\u{3164}\n\
            name \"ö\"\\ of \"ö\"\\\n";
        assert_eq!(String::from_utf8_lossy(&written), expected);
    }
}
