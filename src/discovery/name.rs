// SPDX-License-Identifier: GPL-2.0-or-later

//! Names of agents in the PCP instance domain.
//!
//! The file of instance ids is line-based, and PCP compares instance names up to the first space (pmdaCacheStore(3)). NIXL allows any
//! file name as the name of an agent, so names are escaped. A label has the raw name.

use siphasher::sip::SipHasher13;
use std::ffi::OsStr;
use std::fmt::Write;
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// Longest instance name, in bytes after escaping. Longer ones are shortened.
const MAX_LEN: usize = 200;
/// Bytes of a longer name that remain before `~` and 16 hex digits.
const PREFIX_LEN: usize = 183;

/// Returns the instance name for the name of an agent's file. Different raw names have different instance names.
///
/// `%`, space, control and format characters, quotes, backslash, slash, a leading `[` and bytes that are not UTF-8 become `%XX`.
/// A name longer than 200 bytes after that is shortened and ends with `~` and a hash of the raw name. If a shorter name ends
/// like that, its `~` is escaped.
#[must_use]
pub fn instance_name(raw: &[u8]) -> String {
    let mut name = String::new();
    let mut prefix_end = 0;
    for chunk in raw.utf8_chunks() {
        // Each character, then each byte that is not UTF-8.
        let characters = chunk.valid().char_indices();
        let characters =
            characters.map(|(at, c)| (Some(c), &chunk.valid().as_bytes()[at..at + c.len_utf8()]));
        let others = chunk.invalid().chunks(1).map(|byte| (None, byte));
        for (c, bytes) in characters.chain(others) {
            let is_plain = |&c: &char| c != '%' && !is_escaped(c) && !(c == '[' && name.is_empty());
            match c.filter(is_plain) {
                Some(c) => name.push(c),
                None => bytes.iter().for_each(|byte| {
                    // Writing to a String cannot fail.
                    let _ = write!(name, "%{byte:02X}");
                }),
            }
            if name.len() <= PREFIX_LEN {
                prefix_end = name.len();
            }
        }
    }
    if let Some(tilde) = tilde_before_hash(&name).filter(|_| name.len() <= MAX_LEN) {
        name.replace_range(tilde..=tilde, "%7E");
        prefix_end = prefix_end.min(tilde);
    }
    if name.len() > MAX_LEN {
        name.truncate(prefix_end);
        let _ = write!(name, "~{:016x}", stable_hash(raw));
    }
    name
}

/// Returns the position of the `~` in a name that ends like a shortened one, with `~` and 16 hex digits.
fn tilde_before_hash(name: &str) -> Option<usize> {
    let (before, digits) = name.rsplit_once('~')?;
    let is_hex = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    (digits.len() == 16 && digits.bytes().all(is_hex)).then_some(before.len())
}

/// True if PCP reads the name as one instance name. All results of [`instance_name`] are such names.
#[must_use]
pub fn is_instance_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('[') && !name.contains(is_special)
}

/// Returns untrusted text in a form that is safe on a terminal. Text with spaces, control, invisible or direction-changing
/// characters is quoted and escaped; other text is unchanged.
#[must_use]
pub fn printable(text: &OsStr) -> String {
    let quoted = format!("{text:?}");
    match text.to_str() {
        Some(plain)
            if !plain.is_empty() && !plain.contains(' ') && quoted[1..] == format!("{plain}\"") =>
        {
            plain.to_owned()
        }
        _ => quoted,
    }
}

/// True if [`instance_name`] escapes the character in any position. `%` is handled separately.
fn is_escaped(c: char) -> bool {
    // With U+200B two names would look alike; U+202E would reverse a line.
    is_special(c) || c.general_category() == GeneralCategory::Format || is_invisible(c)
}

/// True for letters and marks that are drawn as nothing or as a blank: the empty Braille pattern, the empty note head, and
/// Default_Ignorable_Code_Point (DerivedCoreProperties.txt of Unicode 16) without the format characters.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2065}'
        | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
        | '\u{1d159}' | '\u{e0000}'..='\u{e0fff}')
}

/// True if the character has a meaning for PCP, or cannot be seen in a table.
fn is_special(c: char) -> bool {
    // All white space, since that outside ASCII is invisible in a table too.
    c.is_control() || c.is_whitespace() || matches!(c, '"' | '\'' | '\\' | '/')
}

/// Returns the instance names for an agent in a directory, best first.
///
/// They are the plain name, then the name with the label of the directory or a hash of its path, then the name with a hash of
/// path and name and a number. The sequence is endless: another user may choose names so that any finite list is taken.
pub fn instance_names(
    raw: &[u8],
    directory: &Path,
    label: Option<&str>,
) -> impl Iterator<Item = String> {
    let path = directory.as_os_str().as_bytes();
    let plain = instance_name(raw);
    let short = format!("{:08x}", stable_hash(path) >> 32);
    let whole = stable_hash(&[path, b"/", raw].concat());
    let first = [
        plain.clone(),
        format!("{plain}@{}", label.unwrap_or(&short)),
        format!("{plain}@{short}"),
    ];
    first
        .into_iter()
        .chain((0_u64..).map(move |number| format!("{plain}@{whole:016x}.{number}")))
}

/// Returns a hash that is equal in every build and on every machine, since names outlive the daemon.
#[must_use]
pub fn stable_hash(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_has_no_control_or_invisible_characters() {
        for (text, expected) in [
            ("--model=a/b", "--model=a/b"),
            ("a b", "\"a b\""),
            ("", "\"\""),
            ("say \"x\"", "\"say \\\"x\\\"\""),
            ("\u{1b}[31m", "\"\\u{1b}[31m\""),
            ("\u{202e}txt", "\"\\u{202e}txt\""),
            ("zero\u{200b}width", "\"zero\\u{200b}width\""),
        ] {
            assert_eq!(printable(OsStr::new(text)), expected);
        }
        assert_eq!(printable(OsStr::from_bytes(b"\xff")), "\"\\xFF\"");
    }

    #[test]
    fn plain_name_is_its_own_instance_name() {
        for name in [
            "worker",
            "kvbm-worker-0",
            "host_4242_17_1",
            "x[1]",
            "größe",
            "a@b",
        ] {
            assert_eq!(instance_name(name.as_bytes()), name);
        }
    }

    #[test]
    fn characters_special_to_pcp_or_invisible_are_escaped() {
        assert_eq!(instance_name(b"worker 1"), "worker%201");
        assert_eq!(instance_name(b"[x]"), "%5Bx]");
        assert_eq!(instance_name(b"a\tb\n"), "a%09b%0A");
        assert_eq!(instance_name(b"100%"), "100%25");
        assert_eq!(instance_name(br#"'"\"#), "%27%22%5C");
        assert_eq!(instance_name(b"\xff\xfe"), "%FF%FE");
        assert_eq!(instance_name("\u{85}".as_bytes()), "%C2%85");
        assert_eq!(instance_name("\u{a0}".as_bytes()), "%C2%A0");
        // Invisible, or the text behind it is reversed.
        assert_eq!(instance_name("a\u{200b}b".as_bytes()), "a%E2%80%8Bb");
        assert_eq!(instance_name("a\u{202e}b".as_bytes()), "a%E2%80%AEb");
        assert_eq!(instance_name("\u{feff}b".as_bytes()), "%EF%BB%BFb");
        // Otherwise two names would look alike.
        for blank in [
            '\u{34f}',
            '\u{115f}',
            '\u{1160}',
            '\u{17b4}',
            '\u{180b}',
            '\u{2800}',
            '\u{3164}',
            '\u{fe0f}',
            '\u{ffa0}',
            '\u{1d159}',
            '\u{1d173}',
            '\u{e0100}',
        ] {
            let name = instance_name(format!("vic{blank}").as_bytes());
            assert!(name.starts_with("vic%") && name.is_ascii(), "{name}");
        }
    }

    #[test]
    fn raw_names_with_escape_sequences_do_not_collide() {
        assert_ne!(instance_name(b"a b"), instance_name(b"a%20b"));
        assert_ne!(instance_name(b"\xff"), instance_name(b"%FF"));
    }

    #[test]
    fn long_name_is_cut_at_a_character_and_ends_with_its_hash() {
        let long = |tail: &str| instance_name(format!("{}{tail}", "ab ".repeat(84)).as_bytes());
        let (one, other) = (long("1"), long("2"));
        assert_ne!(one, other);
        assert!(one.len() <= MAX_LEN, "{}", one.len());
        let (kept, hash) = one.split_at(one.len() - 17);
        assert!(
            hash.starts_with('~') && kept.len() == 182 && kept.ends_with("%20ab"),
            "{kept} {hash}"
        );
        let accents = instance_name("é".repeat(127).as_bytes());
        assert_eq!(accents.len(), 182 + 17);
        assert_eq!(instance_name(&[b'x'; 200]).len(), 200);
        assert_eq!(instance_name(&[b'x'; 201]).len(), 200);
        assert_eq!(instance_name(&[0xff; 255]).len(), 183 + 17);
    }

    #[test]
    fn name_that_looks_shortened_has_its_tilde_escaped() {
        let cut = instance_name(&[b'x'; 201]);
        let made = instance_name(cut.as_bytes());
        assert_ne!(made, cut);
        assert!(made.len() <= MAX_LEN && made[..183] == cut[..183], "{made}");
        let short = "worker~0123456789abcdef";
        assert_eq!(instance_name(short.as_bytes()), short.replace('~', "%7E"));
        for plain in [
            "a~b",
            "~",
            "a~0123456789ABCDEF",
            "a~0123456789abcde",
            "a~0123456789abcdef0",
        ] {
            assert_eq!(instance_name(plain.as_bytes()), plain);
        }
        // Shortening never leaves a part of an escape.
        for len in 195..=200 {
            let name =
                instance_name(format!("{}~{}", "y".repeat(len - 17), "0".repeat(16)).as_bytes());
            assert!(name.len() <= MAX_LEN, "{name}");
            assert!(!name.contains('%') || name.contains("%7E"), "{name}");
        }
    }

    #[test]
    fn taken_name_is_followed_by_its_directory() {
        let names = |label| {
            instance_names(b"a b", Path::new("/var/tmp"), label)
                .take(4)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names(Some("gpu1"))[..3],
            ["a%20b", "a%20b@gpu1", "a%20b@5252f868"]
        );
        assert_eq!(names(None)[1], "a%20b@5252f868");
        assert!(names(None)[3].ends_with(".0"));
    }

    #[test]
    fn hash_of_a_path_never_changes() {
        assert_eq!(stable_hash(b"/var/tmp"), 0x5252_f868_7b5d_c207);
    }
}
