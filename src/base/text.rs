// SPDX-License-Identifier: GPL-2.0-or-later

//! Untrusted text for a terminal or the log. Any user chooses names of files and processes, which can have escape
//! sequences, line ends, and characters that are invisible or change the direction of writing.

use std::ffi::OsStr;

/// Characters that a terminal shows as blanks and `Debug` does not escape: the Hangul fillers, the Braille blank and
/// the musical null notehead. `pcp nixl` has them in `INVISIBLE`.
const BLANK: [char; 6] = [
    '\u{115f}',
    '\u{1160}',
    '\u{2800}',
    '\u{3164}',
    '\u{ffa0}',
    '\u{1d159}',
];

/// Returns a character as a terminal can show it: quotes, `\`, control and invisible characters are escaped.
#[must_use]
pub fn escaped(char: char) -> String {
    match BLANK.contains(&char) {
        true => char.escape_unicode().to_string(),
        false => char.escape_debug().to_string(),
    }
}

/// Returns one line of text with control and invisible characters escaped, also line ends. Quotes and `\` stay, since
/// parts of the line may be escaped already.
#[must_use]
pub fn one_line(text: &str) -> String {
    let escape = |char| match char {
        '"' | '\'' | '\\' => String::from(char),
        char => escaped(char),
    };
    text.chars().map(escape).collect()
}

/// Returns untrusted text in a form that is safe on a terminal. Text with spaces, quotes, control or invisible
/// characters is quoted and escaped; other text is unchanged.
#[must_use]
pub fn printable(text: impl AsRef<OsStr>) -> String {
    let text = text.as_ref();
    let quoted = one_line(&format!("{text:?}"));
    match text.to_str() {
        Some(plain)
            if !plain.is_empty() && !plain.contains(' ') && quoted[1..] == format!("{plain}\"") =>
        {
            plain.to_owned()
        }
        _ => quoted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn printable_text_has_no_control_or_invisible_characters() {
        for (text, expected) in [
            ("--model=a/b", "--model=a/b"),
            ("größe-日本語", "größe-日本語"),
            ("a b", "\"a b\""),
            ("", "\"\""),
            ("say \"x\"", "\"say \\\"x\\\"\""),
            ("\u{1b}[31m", "\"\\u{1b}[31m\""),
            ("\u{202e}txt", "\"\\u{202e}txt\""),
            ("zero\u{200b}width", "\"zero\\u{200b}width\""),
            ("variation\u{fe0f}", "\"variation\\u{fe0f}\""),
            ("filler\u{3164}", "\"filler\\u{3164}\""),
        ] {
            assert_eq!(printable(text), expected);
        }
        assert_eq!(printable(OsStr::from_bytes(b"\xff")), "\"\\xFF\"");
    }

    #[test]
    fn invisible_characters_are_escaped_in_a_line() {
        // INVISIBLE of pcp-nixl.
        let ranges = [
            0xad..=0xad,
            0x34f..=0x34f,
            0x61c..=0x61c,
            0x115f..=0x1160,
            0x17b4..=0x17b5,
            0x180b..=0x180f,
            0x200b..=0x200f,
            0x202a..=0x202e,
            0x2060..=0x206f,
            0x2800..=0x2800,
            0x3164..=0x3164,
            0xfe00..=0xfe0f,
            0xfeff..=0xfeff,
            0xffa0..=0xffa0,
            0xfff0..=0xfff8,
            0x1bca0..=0x1bca3,
            0x1d159..=0x1d159,
            0x1d173..=0x1d17a,
            0xe0000..=0xe0fff_u32,
        ];
        let controls = (0..0x20).chain(0x7f..0xa0);
        for code in ranges.into_iter().flatten().chain(controls) {
            let line = one_line(&String::from(char::from_u32(code).expect("a character")));
            assert!(
                line.starts_with('\\') && line.is_ascii(),
                "{code:x}: {line}"
            );
        }
        let kept = "it's \"größe\" \\ 日本語";
        assert_eq!(one_line(kept), kept);
    }
}
