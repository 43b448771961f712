//! The file that libpcp_pmda keeps the ids of an instance domain in (pmdacache(3)): PCP's Python PMDA for NIXL has one, whose ids
//! go on here, and this one's survives the host, which the state file does not.
//!
//! The library has no way to forget a name that it once had, but ones that end in a use after free: what it writes grows with
//! every agent that ever was. Here the file has the agents that are known, and what room they leave goes to the names that were
//! seen last. Where the file and the state file differ, after a kill, the state file is right.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::SystemTime;

/// First line of a file that holds nothing: version of the format, order of ids, highest id.
const HEADER: &str = "2 0 2147483647";
/// Names that are not known otherwise lose their id when they were not seen for a week, in seconds.
const MAX_AGE: u64 = 7 * 24 * 60 * 60;

/// Stands for a name that is forgotten, in the last line: no agent has it, since `%` is escaped in theirs.
const NOBODY: &str = "%";

/// What the file is to say.
#[derive(Clone, Copy, Debug)]
pub struct Ids<'a> {
    /// The agents that are known: their ids and names.
    pub known: &'a [(u32, &'a str)],
    /// The ids of those that are seen now.
    pub seen: &'a HashSet<u32>,
    /// Names that no known agent has, and the ids that they would get.
    pub kept: &'a HashMap<String, u32>,
    /// More than any id that was given: the last line has the one before it, whose name may be forgotten.
    pub next: u32,
    /// How many lines there may be; those of known agents all stay.
    pub limit: usize,
}

/// The ids and names that the file has; none, where there is none.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<(u32, String)>> {
    let mut options = OpenOptions::new();
    let mut bytes = Vec::new();
    match open(path, options.read(true)) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?.read_to_end(&mut bytes)?,
    };
    let text = String::from_utf8_lossy(&bytes);
    let ids = records(&text).map(|(id, _, name)| (id, name.to_owned()));
    Ok(ids.collect())
}

/// Opens the file: the directory belongs to PCP's user, and no link and no FIFO of its may lead root astray, or hold it up.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC);
    let file = options.open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.nlink() != 1 {
        return Err(io::Error::other("is no regular file, or has a second name"));
    }
    Ok(file)
}

/// Makes the file say so. Nothing is written where it does already.
///
/// # Errors
/// The file cannot be read or written.
pub fn update(path: &Path, ids: Ids) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let mut file = match open(path, &mut options) {
        Err(err) if err.kind() == io::ErrorKind::NotFound && ids.known.is_empty() => return Ok(()),
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            open(path, options.create_new(true).mode(0o644))?
        }
        file => file?,
    };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    // A name that is no UTF-8 is none of ours, and is kept as well as it can be.
    let text = String::from_utf8_lossy(&bytes);
    if let Some(text) = updated(&text, ids, seconds()) {
        // A kill in between costs nothing that the state file does not have.
        file.set_len(0)?;
        file.write_all_at(text.as_bytes(), 0)?;
    }
    Ok(())
}

/// The text that says so; `None`: it is this one, and holds nothing that the library would stumble over: it reads no line
/// behind one that is no record.
fn updated(text: &str, ids: Ids, now: u64) -> Option<String> {
    let mut missing: HashMap<u32, &str> = ids.known.iter().copied().collect();
    let mut names: HashSet<&str> = ids.known.iter().map(|(_, name)| *name).collect();
    let mut taken: HashSet<u32> = missing.keys().copied().collect();
    let (mut known, mut others) = (Vec::new(), Vec::new());
    for (id, time, name) in records(text) {
        if missing.get(&id) == Some(&name) {
            missing.remove(&id);
            let time = if ids.seen.contains(&id) { now } else { time };
            known.push((id, time, name));
            continue;
        }
        // Neither another id for a name, which the library knows up to a space, nor another name for an id.
        let short = name.split(' ').next().unwrap_or(name);
        if now.saturating_sub(time) < MAX_AGE
            && ids.kept.get(name) == Some(&id)
            && !taken.contains(&id)
            && names.insert(short)
            && taken.insert(id)
        {
            others.push((id, time, name));
        }
    }
    known.extend(missing.iter().map(|(&id, &name)| (id, now, name)));
    others.sort_by_key(|&(_, time, _)| Reverse(time));
    others.truncate(ids.limit.saturating_sub(known.len()));
    known.append(&mut others);
    // In the order of their ids, as the library writes them: a new id follows the last line's.
    known.sort_unstable_by_key(|&(id, _, _)| id);
    let last = ids.next.checked_sub(1);
    if let Some(last) = last.filter(|&last| known.last().is_none_or(|&(id, _, _)| id < last)) {
        known.push((last, now, NOBODY));
    }
    let lines = known
        .iter()
        .map(|(id, time, name)| format!("{id} {time} {name}\n"));
    let updated = format!("{HEADER}\n") + &lines.collect::<String>();
    (updated != text).then_some(updated)
}

/// What its lines say, but those that are none as the library writes them.
fn records(text: &str) -> impl Iterator<Item = (u32, u64, &str)> {
    text.split_terminator('\n').skip(1).filter_map(record)
}

/// Id, time and name of a line as the library writes it.
fn record(line: &str) -> Option<(u32, u64, &str)> {
    let mut parts = line.splitn(3, ' ');
    let (id, time) = (number(parts.next()?)?, number(parts.next()?)?);
    // Longer lines are two to the library. In brackets before the name it has a key, which no name of ours came with.
    let name = parts.next().filter(|_| line.len() < 1000)?;
    let begins = name.chars().next()?;
    (!begins.is_ascii_whitespace() && begins != '[').then_some((id, time.into(), name))
}

/// What a C int can be, in digits alone.
fn number(text: &str) -> Option<u32> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<i32>().ok().filter(|_| is_digits)?;
    Some(number.unsigned_abs())
}

fn seconds() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a file that was made right at second 99, with room for more.
    fn corrected(text: &str, known: &[(u32, &str)]) -> Option<String> {
        with(text, known, &[], 100)
    }

    fn with(text: &str, known: &[(u32, &str)], seen: &[u32], limit: usize) -> Option<String> {
        let seen = &seen.iter().copied().collect();
        let mut kept = HashMap::new();
        for (id, _, name) in records(text) {
            kept.entry(name.to_owned()).or_insert(id);
        }
        let ids = Ids {
            known,
            seen,
            kept: &kept,
            next: 0,
            limit,
        };
        updated(text, ids, 99)
    }

    const FILE: &str = "2 0 2147483647\n0 11 a\n1 12 b\n7 13 c%20d\n";

    #[test]
    fn a_file_that_has_all_ids_is_left_alone() {
        assert_eq!(corrected(FILE, &[(7, "c%20d"), (0, "a")]), None);
        assert_eq!(corrected(FILE, &[]), None);
        // One that was made for another user to write to: the library says that it is an error.
        assert_eq!(corrected("", &[]).as_deref(), Some("2 0 2147483647\n"));
    }

    #[test]
    fn ids_that_were_never_saved_are_added() {
        let text = corrected(FILE, &[(0, "a"), (3, "new")]).expect("another text");
        assert_eq!(
            text,
            "2 0 2147483647\n0 11 a\n1 12 b\n3 99 new\n7 13 c%20d\n"
        );
        assert_eq!(
            corrected("", &[(3, "new")]),
            Some("2 0 2147483647\n3 99 new\n".into())
        );
    }

    #[test]
    fn what_contradicts_is_replaced() {
        let text = corrected(FILE, &[(1, "a"), (7, "c%20d")]).expect("another text");
        assert_eq!(text, "2 0 2147483647\n1 99 a\n7 13 c%20d\n");
    }

    #[test]
    fn a_damaged_file_is_written_anew() {
        let damaged = "2 7 9\nrubbish\n5 5 kept\n";
        let text = corrected(damaged, &[(1, "a")]).expect("another text");
        assert_eq!(text, "2 0 2147483647\n1 99 a\n5 5 kept\n");
        assert_eq!(corrected(&text, &[(1, "a")]), None);
    }

    #[test]
    fn a_line_that_the_library_would_stop_at_is_dropped() {
        // Such as the last one of a file that a full disk cut off.
        for line in [
            "5",
            "5 5",
            "5 5 ",
            "5 5 [6b",
            "x 5 x",
            "-5 5 x",
            "+5 5 x",
            "3000000000 5 x",
        ] {
            let text = format!("{FILE}{line}\n");
            assert_eq!(corrected(&text, &[]).as_deref(), Some(FILE), "{line}");
        }
        let (whole, cut) = (&FILE[..FILE.len() - 1], "2 0 21474");
        assert_eq!(corrected(whole, &[]).as_deref(), Some(FILE));
        assert_eq!(corrected(cut, &[]), Some("2 0 2147483647\n".into()));
    }

    #[test]
    fn an_id_and_a_name_that_the_file_has_twice_it_has_once_then() {
        for line in ["7 14 other", "8 14 c%20d", "8 14 c%20d more", "7 13 c%20d"] {
            let text = format!("{FILE}{line}\n");
            assert_eq!(
                corrected(&text, &[(7, "c%20d")]).as_deref(),
                Some(FILE),
                "{line}"
            );
            assert_eq!(corrected(&text, &[]).as_deref(), Some(FILE), "{line}");
        }
    }

    #[test]
    fn a_file_that_is_no_text_is_corrected_all_the_same() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("39.0");
        std::fs::write(&path, b"2 0 2147483647\n0 11 a\n\xff\n").expect("written");
        let ids = Ids {
            known: &[(0, "a"), (3, "new")],
            seen: &HashSet::new(),
            kept: &HashMap::new(),
            next: 0,
            limit: 10,
        };
        update(&path, ids).expect("updated");
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(text.starts_with("2 0 2147483647\n0 11 a\n3 "), "{text}");
        assert!(text.ends_with(" new\n"), "{text}");
    }

    #[test]
    fn those_that_are_seen_get_the_time_and_others_keep_theirs() {
        let known = [(0, "a"), (1, "b"), (3, "new")];
        let text = with(FILE, &known, &[1, 3], 100).expect("another text");
        assert_eq!(
            text,
            "2 0 2147483647\n0 11 a\n1 99 b\n3 99 new\n7 13 c%20d\n"
        );
        assert_eq!(with(&text, &known, &[1, 3], 100), None);
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for_and_the_known_and_the_newest_are() {
        let text = with(FILE, &[(0, "a")], &[], 2).expect("another text");
        assert_eq!(text, "2 0 2147483647\n0 11 a\n7 13 c%20d\n");
        let text = with(FILE, &[(0, "a"), (1, "b")], &[], 1).expect("another text");
        assert_eq!(text, "2 0 2147483647\n0 11 a\n1 12 b\n");
    }

    #[test]
    fn a_name_that_was_not_seen_for_a_week_is_forgotten_unless_it_is_known() {
        let (seen, known) = (&HashSet::new(), &[(0, "a")][..]);
        let kept = &[("b".into(), 1), ("c%20d".into(), 7)].into();
        let ids = Ids {
            known,
            seen,
            kept,
            next: 0,
            limit: 10,
        };
        // b's week is over, and that of c%20d in a second.
        let text = updated(FILE, ids, 12 + MAX_AGE).expect("another text");
        assert_eq!(text, "2 0 2147483647\n0 11 a\n7 13 c%20d\n");
    }

    #[test]
    fn the_highest_id_stays_though_its_name_is_forgotten() {
        let (seen, known) = (&HashSet::new(), &[(0, "a")][..]);
        let ids = |kept, next| Ids {
            known,
            seen,
            kept,
            next,
            limit: 10,
        };
        // Neither name is kept: their agents were forgotten.
        let (none, some) = (&HashMap::new(), &[("new".into(), 3)].into());
        let text = updated(FILE, ids(none, 8), 99).expect("another text");
        assert_eq!(text, "2 0 2147483647\n0 11 a\n7 99 %\n");
        assert_eq!(updated(&text, ids(none, 8), 99), None);
        // A higher one takes its place.
        let text = format!("{text}9 99 b\n");
        let text = updated(&text, ids(some, 10), 99).expect("another text");
        assert_eq!(text, "2 0 2147483647\n0 11 a\n9 99 %\n");
    }
}
