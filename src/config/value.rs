//! The values in the configuration file: each is checked where it is read, so that the error has its line.

use super::{Account, DirectoryPattern};
use crate::totals::histogram::Bounds;
use nix::unistd::User;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A user by name, who must exist.
pub(super) struct UserName(pub Account);

impl<'de> Deserialize<'de> for UserName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        account(&String::deserialize(deserializer)?)
            .map(Self)
            .map_err(de::Error::custom)
    }
}

/// A time between MIN and MAX milliseconds, written with its unit.
pub(super) struct Period<const MIN: u64, const MAX: u64>(pub Duration);

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Period<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Duration;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a time with its unit in quotes, such as \"50ms\" or \"10min\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
                humantime::parse_duration(text).map_err(|_| {
                    E::custom(format_args!(
                        "{text:?} is no time; write one such as \"50ms\" or \"10min\""
                    ))
                })
            }
        }
        let period = deserializer.deserialize_any(Text)?;
        let (min, max) = (Duration::from_millis(MIN), Duration::from_millis(MAX));
        if period < min || period > max {
            let [period, min, max] = [period, min, max].map(humantime::format_duration);
            return Err(de::Error::custom(format_args!(
                "{period} is out of range; allowed are {min} to {max}"
            )));
        }
        Ok(Self(period))
    }
}

/// A whole number from 1 to `MAX`.
pub(super) struct Number<const MAX: u64>(pub u64);

impl<'de, const MAX: u64> Deserialize<'de> for Number<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Expected<const MAX: u64>;
        impl<const MAX: u64> Visitor<'_> for Expected<MAX> {
            type Value = u64;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "a number from 1 to {MAX}, without quotes")
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<u64, E> {
                match u64::try_from(number) {
                    Ok(number) if (1..=MAX).contains(&number) => Ok(number),
                    _ => Err(E::custom(format_args!(
                        "{number} is out of range; allowed are 1 to {MAX}"
                    ))),
                }
            }
        }
        deserializer.deserialize_any(Expected::<MAX>).map(Self)
    }
}

/// Upper bounds of a histogram.
pub(super) struct Buckets(pub Bounds);

impl<'de> Deserialize<'de> for Buckets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bounds = Vec::<u64>::deserialize(deserializer)?;
        Bounds::from_config(&bounds)
            .map(Self)
            .map_err(de::Error::custom)
    }
}

/// Users by name or number.
pub(super) struct Owners(pub Vec<u32>);

impl<'de> Deserialize<'de> for Owners {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Owner(u32);
        impl<'de> Deserialize<'de> for Owner {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct NameOrNumber;
                impl Visitor<'_> for NameOrNumber {
                    type Value = Owner;
                    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                        f.write_str("a user name in quotes, or a user id")
                    }
                    fn visit_str<E: de::Error>(self, name: &str) -> Result<Owner, E> {
                        account(name)
                            .map(|account| Owner(account.uid))
                            .map_err(E::custom)
                    }
                    fn visit_i64<E: de::Error>(self, uid: i64) -> Result<Owner, E> {
                        u32::try_from(uid)
                            .map(Owner)
                            .map_err(|_| E::custom(format_args!("{uid} is no user id")))
                    }
                }
                deserializer.deserialize_any(NameOrNumber)
            }
        }
        struct Users;
        impl<'de> Visitor<'de> for Users {
            type Value = Vec<u32>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of user names in quotes and user ids, such as [\"root\", 1000]")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u32>, A::Error> {
                let mut users = Vec::new();
                while let Some(Owner(uid)) = list.next_element()? {
                    users.push(uid);
                }
                Ok(users)
            }
        }
        let owners = deserializer.deserialize_any(Users)?;
        if owners.is_empty() {
            return Err(de::Error::custom(
                "an empty list takes nobody's files; leave the key out to take everybody's",
            ));
        }
        Ok(Self(owners))
    }
}

/// A path or pattern, or a list of such, each alone or as `{ path = "...", label = "..." }`.
pub(super) struct Directories(pub Vec<DirectoryPattern>);

impl<'de> Deserialize<'de> for Directories {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Directories;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a path in quotes, or a list of paths")
            }
            fn visit_str<E: de::Error>(self, path: &str) -> Result<Directories, E> {
                directory(path, None, false)
                    .map(|dir| Directories(vec![dir]))
                    .map_err(E::custom)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Directories, A::Error> {
                One.visit_map(map).map(|dir| Directories(vec![dir.0]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Directories, A::Error> {
                let mut dirs = Vec::new();
                while let Some(OneDirectory(dir)) = list.next_element()? {
                    dirs.push(dir);
                }
                Ok(Directories(dirs))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

struct OneDirectory(DirectoryPattern);

struct One;

impl<'de> Visitor<'de> for One {
    type Value = OneDirectory;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a path in quotes, or { path = \"...\", label = \"...\" }")
    }
    fn visit_str<E: de::Error>(self, path: &str) -> Result<OneDirectory, E> {
        directory(path, None, false)
            .map(OneDirectory)
            .map_err(E::custom)
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OneDirectory, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Labelled {
            path: String,
            label: Option<String>,
        }
        let Labelled { path, label } =
            Labelled::deserialize(de::value::MapAccessDeserializer::new(map))?;
        directory(&path, label, false)
            .map(OneDirectory)
            .map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for OneDirectory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(One)
    }
}

/// Checks a directory or pattern.
pub(super) fn directory(
    path: &str,
    label: Option<String>,
    literal: bool,
) -> Result<DirectoryPattern, String> {
    if !path.starts_with('/') {
        return Err(format!("{path:?} is not an absolute path; begin it with /"));
    }
    if path.contains('\0') {
        return Err(format!("{path:?} holds a NUL byte"));
    }
    let literal = literal || !path.contains(['*', '?', '[']);
    if !literal && path.split('/').any(|component| component == "..") {
        return Err(format!(
            "{path:?} holds .., which a pattern does not take; write the path without it"
        ));
    }
    if !literal {
        if path.contains("**") {
            return Err(format!(
                "{path:?} holds **, which is not taken; write /*/ for each level"
            ));
        }
        for component in path.split('/') {
            glob::Pattern::new(component)
                .map_err(|err| format!("{path:?} is not a valid pattern: {err}"))?;
        }
    }
    if let Some(label) = &label {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if label.is_empty() || label.len() > 64 || !label.bytes().all(allowed) {
            return Err(format!(
                "label {label:?} is not 1 to 64 letters, digits, '_', '.' or '-'"
            ));
        }
    }
    // `/a//b/` is `/a/b`, as it comes out of the patterns.
    let path: PathBuf = Path::new(path).components().collect();
    Ok(DirectoryPattern {
        path: path.display().to_string(),
        label,
        literal,
    })
}

/// The absolute path of a directory.
pub(super) struct Place(pub PathBuf);

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let path = String::deserialize(deserializer)?;
        let place = directory(&path, None, true).map_err(de::Error::custom)?;
        Ok(Self(place.path.into()))
    }
}

/// Looks a user up.
pub(super) fn account(name: &str) -> Result<Account, String> {
    match User::from_name(name) {
        Ok(Some(user)) => Ok(Account {
            name: user.name,
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
        }),
        Ok(None) => Err(format!(
            "no user {name:?} on this host; name one that `getent passwd` lists"
        )),
        Err(errno) => Err(format!("user {name:?} cannot be looked up: {errno}")),
    }
}
