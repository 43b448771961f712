//! Instance names: what an agent is called in the instance domain.
//!
//! libpcp_pmda keeps instance names in a line-based file and matches them up to the first space (pmdaCacheStore(3)), while
//! NIXL lets an agent be called anything that a file may be called. The raw name goes into a label.

use siphasher::sip::SipHasher13;
use std::ffi::OsStr;
use std::fmt::Write;
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// Longest name that is kept as it is, in bytes after escaping.
const MAX_LEN: usize = 200;
/// What is kept of a longer one, before `~` and 16 hex digits.
const PREFIX_LEN: usize = 183;

/// The instance name of an agent whose file has this name. Different raw names have different instance names.
///
/// `%`, space, control and format characters, quotes, backslash, slash, a leading `[` and bytes that are no UTF-8 become `%XX`. A
/// name that is longer than 200 bytes after that is cut, and told apart by a hash of the whole; the `~` before that is escaped
/// in a name that ends so of itself.
#[must_use]
pub fn instance_name(raw: &[u8]) -> String {
    let mut name = String::new();
    let mut prefix_end = 0;
    for chunk in raw.utf8_chunks() {
        for c in chunk.valid().chars() {
            let leading_bracket = c == '[' && name.is_empty();
            if c == '%' || is_escaped(c) || leading_bracket {
                c.encode_utf8(&mut [0; 4])
                    .bytes()
                    .for_each(|byte| escape(byte, &mut name));
            } else {
                name.push(c);
            }
            if name.len() <= PREFIX_LEN {
                prefix_end = name.len();
            }
        }
        for &byte in chunk.invalid() {
            escape(byte, &mut name);
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
        // Writing to a String cannot fail.
        let _ = write!(name, "~{:016x}", stable_hash(raw));
    }
    name
}

/// Where the `~` stands in a name that ends as one does that was cut.
fn tilde_before_hash(name: &str) -> Option<usize> {
    let (before, digits) = name.rsplit_once('~')?;
    let is_hex = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    (digits.len() == 16 && digits.bytes().all(is_hex)).then_some(before.len())
}

/// Whether a name is one that PCP does not mistake, as all are that are made here.
#[must_use]
pub fn is_instance_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('[') && !name.contains(is_special)
}

/// A stranger's text as it can be shown on a terminal: in quotation marks, and escaped, unless it is plain; characters that are
/// invisible, or turn the direction of what follows, are escaped too.
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

/// What is escaped wherever it stands, other than the escape itself.
fn is_escaped(c: char) -> bool {
    // Such as U+200B and U+202E: two names would look like one, or a line would be read backwards.
    is_special(c) || c.general_category() == GeneralCategory::Format || is_invisible(c)
}

/// Letters and marks that are drawn as nothing, or as a blank: those of Default_Ignorable_Code_Point (DerivedCoreProperties.txt of
/// Unicode 16) that are no format characters, the empty Braille pattern and the empty note head.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2065}'
        | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
        | '\u{1d159}' | '\u{e0000}'..='\u{e0fff}')
}

/// What PCP or a reader of a table takes for something else.
fn is_special(c: char) -> bool {
    // White space outside ASCII is invisible in a table.
    c.is_control() || c.is_whitespace() || matches!(c, '"' | '\'' | '\\' | '/')
}

/// Instance names for an agent in a directory, the best first: its own; with the directory's label, or a hash of its path,
/// behind it; then with hashes of both and a number, without end, since names are a stranger's choice and any may be taken.
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

/// A hash that is the same in every build and on every machine: names outlive the daemon.
#[must_use]
pub fn stable_hash(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

fn escape(byte: u8, name: &mut String) {
    let _ = write!(name, "%{byte:02X}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_neither_moves_the_cursor_nor_hides() {
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
    fn plain_names_stay_as_they_are() {
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
    fn what_pcp_would_mistake_is_escaped() {
        assert_eq!(instance_name(b"worker 1"), "worker%201");
        assert_eq!(instance_name(b"[x]"), "%5Bx]");
        assert_eq!(instance_name(b"a\tb\n"), "a%09b%0A");
        assert_eq!(instance_name(b"100%"), "100%25");
        assert_eq!(instance_name(br#"'"\"#), "%27%22%5C");
        assert_eq!(instance_name(b"\xff\xfe"), "%FF%FE");
        assert_eq!(instance_name("\u{85}".as_bytes()), "%C2%85");
        assert_eq!(instance_name("\u{a0}".as_bytes()), "%C2%A0");
        // Invisible, or read backwards from there on.
        assert_eq!(instance_name("a\u{200b}b".as_bytes()), "a%E2%80%8Bb");
        assert_eq!(instance_name("a\u{202e}b".as_bytes()), "a%E2%80%AEb");
        assert_eq!(instance_name("\u{feff}b".as_bytes()), "%EF%BB%BFb");
        // No name has a twin that looks the same.
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
    fn names_that_escape_alike_do_not_collide() {
        assert_ne!(instance_name(b"a b"), instance_name(b"a%20b"));
        assert_ne!(instance_name(b"\xff"), instance_name(b"%FF"));
    }

    #[test]
    fn a_long_name_is_cut_at_a_character_and_told_apart_by_its_hash() {
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
    fn a_name_that_looks_like_one_that_was_cut_has_its_tilde_escaped() {
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
        // No half of an escape is left of one that is cut for that.
        for len in 195..=200 {
            let name =
                instance_name(format!("{}~{}", "y".repeat(len - 17), "0".repeat(16)).as_bytes());
            assert!(name.len() <= MAX_LEN, "{name}");
            assert!(!name.contains('%') || name.contains("%7E"), "{name}");
        }
    }

    #[test]
    fn a_name_that_is_taken_gets_the_directory_behind_it() {
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
    fn the_hash_never_changes() {
        assert_eq!(stable_hash(b"/var/tmp"), 0x5252_f868_7b5d_c207);
    }
}
