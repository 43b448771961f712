// SPDX-License-Identifier: GPL-2.0-or-later

//! Names of agents in the PCP instance domain.
//!
//! pmie pastes instance names into command lines of sh(1), `pmval -i` splits at commas, the file of instance ids is
//! line-based, and PCP compares instance names up to the first space (pmdaCacheStore(3)). NIXL allows any file name as
//! the name of an agent, so names are escaped. A label has the raw name.

use siphasher::sip::SipHasher13;
use std::fmt::Write;
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest instance name, in bytes after escaping. Longer ones are shortened.
const MAX_LEN: usize = 200;
/// Bytes of a longer name that remain before `~` and 16 hex digits.
const PREFIX_LEN: usize = 183;

/// Returns the instance name for the name of an agent's file. Different raw names have different instance names.
///
/// All bytes but ASCII letters, digits and `.` `_` `+` `=` `-` become `%XX`, and so does `-` at the beginning. pmrep
/// 6.0.3 cuts off other letters. A name longer than 200 bytes after that is shortened and ends with `~` and a hash of
/// the raw name.
#[must_use]
pub fn instance_name(raw: &[u8]) -> String {
    let mut name = escaped(raw, is_plain);
    if name.len() > MAX_LEN {
        // An escape has three bytes, and is not cut.
        let cut_escape = name[PREFIX_LEN - 2..PREFIX_LEN].find('%');
        name.truncate(cut_escape.map_or(PREFIX_LEN, |at| PREFIX_LEN - 2 + at));
        let _ = write!(name, "~{:016x}", stable_hash(raw));
    }
    name
}

/// Returns the instance name of a process: its pid and its command, as the proc PMDA of PCP forms it. The command is
/// escaped like the name of an agent, without its `:`, which separates nothing here: titles such as `VLLM::Worker` are
/// common.
#[must_use]
pub fn process_name(pid: u32, command: &str) -> String {
    let command = escaped(command.as_bytes(), |byte| is_plain(byte) || byte == b':');
    format!("{pid} {command}").trim_end().to_owned()
}

/// True if the byte has no meaning for a shell, and for no tool of PCP.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._+=-".contains(&byte)
}

/// Returns a text with all other bytes than plain ones as `%XX`, and also `-` at the beginning, where it would begin an
/// option.
fn escaped(raw: &[u8], is_plain: impl Fn(u8) -> bool) -> String {
    let mut text = String::new();
    for &byte in raw {
        match is_plain(byte) && !(text.is_empty() && byte == b'-') {
            true => text.push(char::from(byte)),
            // Writing to a String cannot fail.
            false => _ = write!(text, "%{byte:02X}"),
        }
    }
    text
}

/// True if PCP reads the name as one instance name. All results of [`instance_name`] are such names, of all versions.
#[must_use]
pub fn is_instance_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('[') && !name.contains(is_special)
}

/// True if the character has a meaning for PCP, or cannot be seen in a table.
fn is_special(c: char) -> bool {
    // All white space, since that outside ASCII is invisible in a table too.
    c.is_control() || c.is_whitespace() || matches!(c, '"' | '\'' | '\\' | '/')
}

/// Returns the instance names for an agent in a directory, best first.
///
/// They are the plain name, then the name with the label of the directory or a hash of its path, then the name with a
/// hash of path and name and a number. The sequence is endless: another user may choose names so that any finite list
/// is taken.
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
    use proptest::prelude::*;

    #[test]
    fn plain_name_is_its_own_instance_name() {
        for name in ["worker", "kvbm-worker-0", "host_4242_17_1", "a=b+c.d-"] {
            assert_eq!(instance_name(name.as_bytes()), name);
        }
    }

    #[test]
    fn all_other_bytes_are_escaped() {
        for byte in 0..=u8::MAX {
            let name = instance_name(&[b'a', byte]);
            let is_plain = byte.is_ascii_alphanumeric() || b"._+=-".contains(&byte);
            let plain = is_plain.then(|| format!("a{}", char::from(byte)));
            assert_eq!(name, plain.unwrap_or_else(|| format!("a%{byte:02X}")));
        }
        for (raw, name) in [
            ("$(id>pwn)", "%24%28id%3Epwn%29"),
            ("a;id;#", "a%3Bid%3B%23"),
            ("-rf", "%2Drf"),
            ("--", "%2D-"),
            ("a::10.0.0.1", "a%3A%3A10.0.0.1"),
            ("a@b", "a%40b"),
            ("größe", "gr%C3%B6%C3%9Fe"),
            ("a\u{202e}b", "a%E2%80%AEb"),
        ] {
            assert_eq!(instance_name(raw.as_bytes()), name);
        }
    }

    #[test]
    fn command_of_a_process_is_escaped_but_for_colons() {
        for (command, name) in [
            ("python3", "7 python3"),
            ("VLLM::Worker", "7 VLLM::Worker"),
            ("$(id>pwn)", "7 %24%28id%3Epwn%29"),
            ("-x a", "7 %2Dx%20a"),
            ("", "7"),
        ] {
            assert_eq!(process_name(7, command), name);
        }
    }

    /// Bytes that are often special, at any place of a name.
    fn any_raw() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            proptest::sample::select(b"a-%~@:25~0".to_vec()),
            1..=u8::MAX
        ];
        proptest::collection::vec(byte, 1..255)
    }

    proptest! {
        #[test]
        fn different_raw_names_have_different_instance_names(one in any_raw(), other in any_raw()) {
            // A name that looks like the escaped form of another is the likeliest collision.
            let shown = instance_name(&one).into_bytes();
            for (one, other) in [(&one, &other), (&one, &shown)] {
                prop_assert_eq!(one == other, instance_name(one) == instance_name(other));
            }
        }

        #[test]
        fn instance_names_are_short_and_one_word(raw in any_raw(), label in "[a-z0-9_.-]{1,64}") {
            for name in instance_names(&raw, Path::new("/var/tmp"), Some(&label)).take(5) {
                prop_assert!(name.len() <= MAX_LEN + 65 && is_instance_name(&name));
            }
        }
    }

    #[test]
    fn long_name_is_cut_between_escapes_and_ends_with_its_hash() {
        for (raw, kept) in [
            (vec![b'x'; 201], 183),
            (vec![0xff; 255], 183),
            ([&b"x"[..], &[0xff; 254]].concat(), 181),
            ([&b"xx"[..], &[0xff; 253]].concat(), 182),
        ] {
            let name = instance_name(&raw);
            let (before, hash) = name.split_at(kept);
            assert_eq!(hash, format!("~{:016x}", stable_hash(&raw)));
            let whole = raw.iter().map(|&byte| instance_name(&[byte]));
            assert!(whole.collect::<String>().starts_with(before), "{name}");
        }
        assert_eq!(instance_name(&[b'x'; 200]).len(), 200);
    }

    #[test]
    fn name_that_looks_shortened_has_its_tilde_escaped() {
        let cut = instance_name(&[b'x'; 201]);
        let made = instance_name(cut.as_bytes());
        assert!(made != cut && made.len() <= MAX_LEN && made[..183] == cut[..183]);
        let short = "worker~0123456789abcdef";
        assert_eq!(instance_name(short.as_bytes()), short.replace('~', "%7E"));
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
