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
use lookup::{ANSWER_TIME, Question};
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
    /// Ids of its other groups, from /etc/group.
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
#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    name: String,
    uid: u32,
    gid: u32,
}

/// Returns the users in lines of passwd(5).
fn users(text: &str) -> impl Iterator<Item = User> + '_ {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let mut numbers = fields.skip(1).map(|field| field.parse().ok());
        Some(User {
            name: name.to_owned(),
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

/// Returns the text of a file; empty if it cannot be read.
fn text_of(path: &str) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the text of /etc/passwd; empty if it cannot be read.
fn passwd_file() -> String {
    text_of("/etc/passwd")
}

/// Returns the name of a user in /etc/passwd, or the number of another user.
#[must_use]
pub fn local_name(uid: u32) -> String {
    let text = passwd_file();
    let found = users(&text).find(|user| user.uid == uid);
    found.map_or_else(|| uid.to_string(), |user| user.name)
}

/// Limit of questions to the name services that are asked at the same time.
const MAX_QUESTIONS: usize = 16;

/// What was asked by this process.
#[derive(Debug, Default)]
struct Asked {
    /// Users of the name services, by the name that was asked for. A configuration with the names of the one before
    /// needs no look-up.
    users: HashMap<String, User>,
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

/// Returns the users with these login names. Names that are not in /etc/passwd are asked for, some at the same time.
/// All answers together have [`ANSWER_TIME`]. A name that was answered is not asked for again.
fn find(names: &[&str]) -> Result<Vec<User>, AccountError> {
    let text = passwd_file();
    // The first line of a name counts, as for getpwnam(3).
    let local = |name: &str| users(&text).find(|user| user.name == name);
    let mut asked = asked();
    let is_new = |name: &&str| local(name).is_none() && !asked.users.contains_key(*name);
    let new: Vec<&str> = names.iter().copied().filter(is_new).collect();
    let deadline = Instant::now() + ANSWER_TIME;
    for names in new.chunks(MAX_QUESTIONS) {
        let questions: Vec<Question> = names.iter().map(|&name| vec![name.to_owned()]).collect();
        let answers = match asked.has_ended {
            true => vec![Err(NotAnswered::AfterStart); names.len()],
            false => lookup::look_up_all(&questions, deadline),
        };
        for (&name, answer) in names.iter().zip(answers) {
            let text = answer.map_err(|why| AccountError::NotAnswered {
                name: name.to_owned(),
                why,
            })?;
            // A name service may spell the name in another way.
            let user = users(&text).next();
            asked.users.extend(user.map(|user| (name.to_owned(), user)));
        }
    }
    let user = |&name: &&str| {
        let found = local(name).or_else(|| asked.users.get(name).cloned());
        found.ok_or(AccountError::Unknown {
            name: name.to_owned(),
        })
    };
    names.iter().map(user).collect()
}

/// Returns the user ids of login names. Waits for the name services if a name is not in /etc/passwd.
///
/// # Errors
/// A name has no account, or the name services do not answer.
pub fn uids(names: &[&str]) -> Result<Vec<u32>, AccountError> {
    let users = find(names)?.into_iter();
    Ok(users.map(|user| user.uid).collect())
}

/// Returns the account of a user, with its groups in /etc/group. Waits for the name services if the user is not in
/// /etc/passwd.
///
/// # Errors
/// The name has no account, or the name services do not answer.
pub fn account(name: &str) -> Result<UserAccount, AccountError> {
    let unknown = || AccountError::Unknown {
        name: name.to_owned(),
    };
    let User { name, uid, gid } = find(&[name])?.pop().ok_or_else(unknown)?;
    let mut groups = groups_of(&text_of("/etc/group"), &name);
    groups.retain(|&group| group != gid);
    Ok(UserAccount {
        name,
        uid,
        gid,
        groups,
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
        let expected = [("root", 0, 0), ("x", u32::MAX, 7)];
        assert_eq!(
            found,
            expected.map(|(name, uid, gid)| (name.to_owned(), uid, gid))
        );
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
    fn unknown_names_are_no_accounts() {
        // getent takes a name with a hyphen for an option.
        for name in ["no-such-user", "-s", "", "root:x"] {
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
