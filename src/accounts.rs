// SPDX-License-Identifier: GPL-2.0-or-later

//! Users by name and by number, from /etc/passwd and from the name services of the host (nsswitch.conf(5)).
//!
//! A name service may be a server that does not answer, and getpwnam(3) then blocks without limit. So this process calls no such
//! function. It reads /etc/passwd, and asks getent(1) for all else: a process that can be killed.

use lookup::Lookup;
use std::collections::HashMap;
use std::fs;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

mod lookup;
pub mod names;
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

/// Lines that getent(1) has answered, by database and key. A configuration with the names of the one before needs no look-up.
static ANSWERS: LazyLock<Mutex<HashMap<(&str, String), String>>> = LazyLock::new(Mutex::default);

/// Asks the name services for the lines of keys, and waits for the answer. Asks once for each key. Returns the lines that exist.
fn ask(database: &'static str, keys: &[&str]) -> Result<Vec<String>, NotAnswered> {
    let mut known = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let missing = keys.iter().map(|&key| key.to_owned());
    let missing: Vec<String> = missing
        .filter(|key| !known.contains_key(&(database, key.clone())))
        .collect();
    if !missing.is_empty() {
        let text = Lookup::start(database, &missing, Instant::now())?.wait()?;
        for line in text.lines() {
            let name = line.split([':', ' ']).next().unwrap_or_default();
            known.insert((database, name.to_owned()), line.to_owned());
        }
    }
    let line = |key: &&str| known.get(&(database, (*key).to_owned())).cloned();
    Ok(keys.iter().filter_map(line).collect())
}

/// Returns the user ids of login names. Waits for the name services if a name is not in /etc/passwd.
///
/// # Errors
/// A name has no account, or the name services do not answer.
pub fn uids(names: &[&str]) -> Result<Vec<u32>, AccountError> {
    let mut text = passwd_file();
    let is_local = |name: &str| users(&text).any(|user| user.name == name);
    let others: Vec<&str> = { names.iter().copied() }
        .filter(|name| !is_local(name))
        .collect();
    if let Some(name) = others.first() {
        let answer = ask("passwd", &others).map_err(|why| AccountError::NotAnswered {
            name: (*name).to_owned(),
            why,
        })?;
        text += "\n";
        text += &answer.join("\n");
    }
    let uid = |&name: &&str| {
        let found = users(&text).find(|user| user.name == name);
        found.map(|user| user.uid).ok_or(AccountError::Unknown {
            name: name.to_owned(),
        })
    };
    names.iter().map(uid).collect()
}

/// Returns the account of a user, with its groups. Waits for the name services.
///
/// # Errors
/// The name has no account, or the name services do not answer. Those of a user in /etc/passwd need not answer: the user then has
/// its groups in /etc/group only.
pub fn account(name: &str) -> Result<UserAccount, AccountError> {
    let not_answered = |why| AccountError::NotAnswered {
        name: name.to_owned(),
        why,
    };
    let mut text = passwd_file();
    let is_local = users(&text).any(|user| user.name == name);
    if !is_local {
        text = ask("passwd", &[name]).map_err(not_answered)?.join("\n");
    }
    let user = users(&text).find(|user| user.name == name);
    let user = user.ok_or(AccountError::Unknown {
        name: name.to_owned(),
    })?;
    let line = match ask("initgroups", &[name]) {
        Ok(lines) => lines.join("\n"),
        Err(why) if is_local => {
            tracing::warn!(
                "user {name}: only its groups in /etc/group are known: {why}; if it needs others, run ./Install again when `getent initgroups {name}` answers"
            );
            let file = fs::read("/etc/group").unwrap_or_default();
            let groups = groups_of(&String::from_utf8_lossy(&file), name);
            let groups = groups.into_iter().map(|gid| format!(" {gid}"));
            let line = format!("{name}{}", groups.collect::<String>());
            let mut known = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(("initgroups", name.to_owned()), line.clone());
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
        for name in ["no-such-user", "0", "-s", "", "root:x"] {
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
