// SPDX-License-Identifier: GPL-2.0-or-later

//! Users by name and by number. The configuration names users of /etc/passwd, and others by their numbers. Names for
//! labels also come from the name services of the host (nsswitch.conf(5)).
//!
//! A name service may be a server that does not answer, and getpwnam(3) then blocks without limit. So no process of
//! this program calls it: a worker asks getent(1), a process that can be killed ([`lookup`]).

use serde::Deserialize;
use std::fs;

pub mod lookup;
pub mod user_names;

/// A user account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserAccount {
    /// Login name, or the user id as text if /etc/passwd has no name for it.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Ids of its other groups, from /etc/group.
    pub groups: Vec<u32>,
}

/// A user in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum UserKey {
    /// User id.
    Id(u32),
    /// Login name.
    Name(String),
}

/// A user name that is not in /etc/passwd.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "user {0:?} is not in /etc/passwd; in place of the name write the number that `id -u {0}` prints, without quotes"
)]
pub struct UnknownUser(String);

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

/// Returns the user ids of users.
///
/// # Errors
/// A name is not in /etc/passwd.
pub fn uids(keys: &[UserKey]) -> Result<Vec<u32>, UnknownUser> {
    let text = passwd_file();
    let uid = |key: &UserKey| match key {
        UserKey::Id(uid) => Ok(*uid),
        UserKey::Name(name) => named(&text, name).map(|user| user.uid),
    };
    keys.iter().map(uid).collect()
}

/// Returns the account of a user, with its groups in /etc/group. A number that is not in /etc/passwd is the id of the
/// user and of its group.
///
/// # Errors
/// The name is not in /etc/passwd.
pub fn account(key: &UserKey) -> Result<UserAccount, UnknownUser> {
    let text = passwd_file();
    let found = match key {
        UserKey::Id(uid) => users(&text).find(|user| user.uid == *uid).unwrap_or(User {
            name: uid.to_string(),
            uid: *uid,
            gid: *uid,
        }),
        UserKey::Name(name) => named(&text, name)?,
    };
    let User { name, uid, gid } = found;
    let mut groups = groups_of(&text_of("/etc/group"), &name);
    groups.retain(|&group| group != gid);
    Ok(UserAccount {
        name,
        uid,
        gid,
        groups,
    })
}

/// Returns the user with a name in lines of passwd(5). The first line of a name counts, as for getpwnam(3).
fn named(text: &str, name: &str) -> Result<User, UnknownUser> {
    let found = users(text).find(|user| user.name == name);
    found.ok_or_else(|| UnknownUser(name.to_owned()))
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
    fn account_has_its_numbers() {
        for key in [UserKey::Name("root".into()), UserKey::Id(0)] {
            let root = account(&key).expect("on each host");
            assert_eq!((&*root.name, root.uid, root.gid), ("root", 0, 0));
            assert_eq!(uids(&[key, UserKey::Id(7)]), Ok(vec![0, 7]));
        }
        assert_eq!(local_name(0), "root");
        let other = account(&UserKey::Id(u32::MAX - 1)).expect("a number");
        let expected = UserAccount {
            name: (u32::MAX - 1).to_string(),
            uid: u32::MAX - 1,
            gid: u32::MAX - 1,
            groups: Vec::new(),
        };
        assert_eq!(other, expected);
    }

    #[test]
    fn unknown_names_are_no_accounts() {
        for name in ["no-such-user", "0", "", "root:x"] {
            let key = || UserKey::Name(name.into());
            let unknown = UnknownUser(name.into());
            assert_eq!(account(&key()), Err(UnknownUser(name.into())));
            assert_eq!(uids(&[UserKey::Id(0), key()]), Err(unknown), "{name}");
        }
        assert_eq!(local_name(u32::MAX - 1), "4294967294");
    }
}
