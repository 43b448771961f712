// SPDX-License-Identifier: GPL-2.0-or-later

//! Users by name and by number, from /etc/passwd and from the name services of the host (nsswitch.conf(5)).
//!
//! A name service may be a server that does not answer, and getpwnam(3) then blocks without limit. So this process
//! calls no such function. It reads /etc/passwd, and asks getent(1) for all else: a process that can be killed.

use std::collections::HashMap;
use std::fs;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub mod lookup;
pub mod names;
use lookup::{ANSWER_TIME, Answer, Question};
pub use lookup::{NOT_ANSWERED, NotAnswered};

/// A user account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserAccount {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Ids of its other groups.
    pub groups: Vec<u32>,
}

/// Why a user name has no account.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// All name services have answered.
    #[error("no user {name:?} on this host; name one that `getent passwd` lists")]
    Unknown {
        /// Login name.
        name: String,
    },
    /// It is not known whether there is such a user.
    #[error("user {name:?} cannot be looked up: {why}; see what `getent passwd {name}` does")]
    NotAnswered {
        /// Login name.
        name: String,
        /// What happened.
        why: NotAnswered,
    },
}

/// Line of passwd(5): a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct User<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
}

/// Returns the users in lines of passwd(5).
fn users(text: &str) -> impl Iterator<Item = User<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let mut numbers = fields.skip(1).map(|field| field.parse().ok());
        Some(User {
            name,
            uid: numbers.next()??,
            gid: numbers.next()??,
        })
    })
}

/// Returns the groups that lines of group(5) give to a user.
fn groups_of(text: &str, user: &str) -> Vec<u32> {
    let group = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let gid = fields.next()?.parse().ok()?;
        let mut members = fields.next()?.split(',');
        members.any(|member| member == user).then_some(gid)
    };
    text.lines().filter_map(group).collect()
}

/// Returns the text of /etc/passwd; empty if it cannot be read.
fn passwd_file() -> String {
    let bytes = fs::read("/etc/passwd").unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the name of a user in /etc/passwd, or the number of another user.
#[must_use]
pub fn local_name(uid: u32) -> String {
    let text = passwd_file();
    let found = users(&text).find(|user| user.uid == uid);
    found.map_or_else(|| uid.to_string(), |user| user.name.to_owned())
}

/// Limit of questions to the name services that are asked at the same time.
const MAX_QUESTIONS: usize = 16;

/// What was asked by this process.
#[derive(Debug, Default)]
struct Asked {
    /// Lines of the name services, by question. A configuration with the names of the one before needs no look-up.
    lines: HashMap<Question, String>,
    /// True after [`end_questions`].
    has_ended: bool,
}

static ASKED: LazyLock<Mutex<Asked>> = LazyLock::new(Mutex::default);

fn asked() -> MutexGuard<'static, Asked> {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on no look-up of this module starts getent(1), which the process may not do any more once it is locked in:
/// names that were not answered before have no answer.
pub fn end_questions() {
    asked().has_ended = true;
}

/// Looks keys up in databases of nsswitch.conf(5), all at the same time, and waits for the answers, [`ANSWER_TIME`]
/// from `begin` on. A line that was answered once is not asked for again. Returns the lines; `None` for a key that does
/// not exist.
fn ask(
    questions: &[(&'static str, &str)],
    begin: Instant,
) -> Vec<Result<Option<String>, NotAnswered>> {
    let mut asked = asked();
    let question = |&(database, key): &(&'static str, &str)| Question {
        database: database.to_owned(),
        keys: vec![key.to_owned()],
    };
    let all = Vec::from_iter(questions.iter().map(question));
    let is_new = |question: &&Question| {
        !asked.lines.contains_key(*question) && !is_number(&question.keys[0])
    };
    let new: Vec<Question> = all.iter().filter(is_new).cloned().collect();
    let answers = match asked.has_ended {
        true => new.iter().map(|_| Err(NotAnswered::AfterStart)).collect(),
        false => lookup::look_up_all(&new, begin + ANSWER_TIME),
    };
    let mut answers: HashMap<Question, Answer> = new.into_iter().zip(answers).collect();
    let lines = all
        .into_iter()
        .map(|question| match answers.remove(&question) {
            None => Ok(asked.lines.get(&question).cloned()),
            // A name service may spell the name in another way.
            Some(answer) => answer.map(|text| {
                let line = text.lines().next()?.to_owned();
                asked.lines.insert(question, line.clone());
                Some(line)
            }),
        });
    lines.collect()
}

/// Returns the user ids in lines of passwd(5), by name. The first line of a name counts, as for getpwnam(3).
fn uids_in(text: &str) -> HashMap<&str, u32> {
    let mut found = HashMap::new();
    for user in users(text) {
        found.entry(user.name).or_insert(user.uid);
    }
    found
}

/// True if getent(1) takes a key for an id, which strtoul(3) reads.
fn is_number(key: &str) -> bool {
    let digits = key.trim_start();
    let digits = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the user ids of login names. Waits for the name services if a name is not in /etc/passwd. Names that were
/// answered in time are known the next time.
///
/// # Errors
/// A name has no account, or the name services do not answer.
pub fn uids(names: &[&str]) -> Result<Vec<u32>, AccountError> {
    let text = passwd_file();
    let mut known = uids_in(&text);
    let others: Vec<&str> = { names.iter().copied() }
        .filter(|name| !known.contains_key(name))
        .collect();
    let begin = Instant::now();
    for others in others.chunks(MAX_QUESTIONS) {
        let questions: Vec<_> = others.iter().map(|&name| ("passwd", name)).collect();
        for (&name, line) in others.iter().zip(ask(&questions, begin)) {
            let line = line.map_err(|why| AccountError::NotAnswered {
                name: name.to_owned(),
                why,
            })?;
            let user = line.as_deref().and_then(|line| users(line).next());
            known.extend(user.map(|user| (name, user.uid)));
        }
    }
    let uid = |&name: &&str| {
        known.get(name).copied().ok_or(AccountError::Unknown {
            name: name.to_owned(),
        })
    };
    names.iter().map(uid).collect()
}

/// Returns the account of a user, with its groups. Waits for the name services.
///
/// # Errors
/// The name has no account, or the name services do not answer. Those of a user in /etc/passwd need not answer: the
/// user then has its groups in /etc/group only.
pub fn account(name: &str) -> Result<UserAccount, AccountError> {
    let not_answered = |why| AccountError::NotAnswered {
        name: name.to_owned(),
        why,
    };
    let mut text = passwd_file();
    let is_local = users(&text).any(|user| user.name == name);
    let mut questions = vec![("initgroups", name)];
    if !is_local {
        questions.push(("passwd", name));
    }
    let mut answers = ask(&questions, Instant::now()).into_iter();
    let groups = answers.next().unwrap_or(Ok(None));
    if let Some(line) = answers.next() {
        text = line.map_err(not_answered)?.unwrap_or_default();
    }
    let is_meant = |user: &User| !is_local || user.name == name;
    let user = users(&text).find(is_meant);
    let user = user.ok_or(AccountError::Unknown {
        name: name.to_owned(),
    })?;
    let line = match groups {
        Ok(line) => line.unwrap_or_default(),
        Err(why) if is_local => {
            tracing::warn!(
                "user {name}: only its groups in /etc/group are known: {why}; if it needs others, run ./Install again when `getent initgroups {name}` answers"
            );
            let file = fs::read("/etc/group").unwrap_or_default();
            let groups = groups_of(&String::from_utf8_lossy(&file), name);
            let groups = groups.into_iter().map(|gid| format!(" {gid}"));
            let line = format!("{name}{}", groups.collect::<String>());
            let question = Question {
                database: "initgroups".into(),
                keys: vec![name.to_owned()],
            };
            asked().lines.insert(question, line.clone());
            line
        }
        Err(why) => return Err(not_answered(why)),
    };
    let gids = line.split(' ').skip(1).filter_map(|gid| gid.parse().ok());
    Ok(UserAccount {
        name: user.name.to_owned(),
        uid: user.uid,
        gid: user.gid,
        groups: gids.filter(|&gid| gid != user.gid).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_passwd_and_group_are_read() {
        let text = "root:x:0:0:root:/root:/bin/bash\n\n# no line\n+::::::\nx:x:4294967295:7::/:\nx:x:-1:7::/:";
        let found: Vec<_> = users(text)
            .map(|user| (user.name, user.uid, user.gid))
            .collect();
        assert_eq!(found, [("root", 0, 0), ("x", u32::MAX, 7)]);
        assert_eq!(uids_in("a:x:1:1\nb:x:2:2\na:x:0:0")["a"], 1);
        let text = "adm:x:4:syslog,pcp\npcp:x:990:\nbad:x:x:pcp\nvideo:x:44:pcp\npc:x:5:pcpx";
        assert_eq!(groups_of(text, "pcp"), [4, 44]);
        assert_eq!(groups_of(text, ""), [990]);
    }

    #[test]
    fn account_of_a_local_user_has_its_numbers() {
        let root = account("root").expect("on each host");
        assert_eq!((&*root.name, root.uid, root.gid), ("root", 0, 0));
        assert_eq!(uids(&["root", "root"]).expect("there"), [0, 0]);
        assert_eq!(local_name(0), "root");
    }

    #[test]
    fn unknown_names_and_numbers_are_no_accounts() {
        // getent takes a number for a user id, and a name with a hyphen for an option.
        for name in ["no-such-user", "0", " 0", "-0", "+0", "-s", "", "root:x"] {
            let both = [account(name).map(drop), uids(&["root", name]).map(drop)];
            for result in both {
                let unknown =
                    matches!(&result, Err(AccountError::Unknown { name: other }) if other == name);
                assert!(unknown, "{name:?}: {result:?}");
            }
        }
        assert_eq!(local_name(u32::MAX - 1), "4294967294");
    }
}
