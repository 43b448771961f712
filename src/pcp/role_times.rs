// SPDX-License-Identifier: GPL-2.0-or-later

//! Instance domain of the sums by role: one instance for each role and upper bound of times.
//!
//! Their instance ids need no file. An id is made of the place of the role and the first bits of the bound, as a
//! floating-point number has them. So a bound keeps its id when others are configured, ids rise with the bounds, and
//! that of a bound up to 2^21 never gets another name.

use crate::procfs::facts::server::ROLES;
use crate::stats::bucket_bounds::BucketBounds;
use crate::stats::histogram::Bounds;
use serde_json::json;

/// Bits of a bound in an instance id, without its highest bit. Bounds up to 2^21 have no more.
const BITS: u32 = 20;
/// Instance ids per role. A bound has 54 sizes at most, because it is at most 2^53.
const IDS_PER_ROLE: u32 = 64 << BITS;
const _: () = assert!(ROLES.len() as u64 * IDS_PER_ROLE as u64 <= i32::MAX as u64);

/// Role and bucket of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleBucket {
    /// Place of the role in [`ROLES`].
    pub role: usize,
    /// Index of the bucket.
    pub bucket: usize,
}

/// Returns the instances of all roles: id, name, role and bucket of each.
#[must_use]
pub fn instances(bounds: &Bounds) -> Vec<(u32, String, RoleBucket)> {
    let mut numbers: Vec<u32> = bounds
        .as_slice()
        .iter()
        .map(|&bound| number(bound))
        .collect();
    // Bounds that differ in later bits only.
    for at in 1..numbers.len() {
        numbers[at] = numbers[at].max(numbers[at - 1] + 1);
    }
    numbers.push(IDS_PER_ROLE - 1);
    let suffixes = BucketBounds::of(bounds);
    let firsts = (0..).step_by(IDS_PER_ROLE as usize);
    let roles = ROLES.iter().zip(firsts).enumerate();
    let all = roles.flat_map(|(role, (name, first))| {
        let buckets = numbers.iter().enumerate();
        buckets.map(move |(bucket, number)| {
            let name = format!("{name}::{}", suffixes.le_suffix(bucket));
            (first + number, name, RoleBucket { role, bucket })
        })
    });
    all.collect()
}

/// Returns the number of a bound in an instance id: the exponent, and the bits that follow the highest one.
fn number(bound: u64) -> u32 {
    let exponent = bound.max(1).ilog2();
    let bits = match exponent.checked_sub(BITS) {
        Some(excess) => bound >> excess,
        None => bound << (BITS - exponent),
    };
    let bits = bits & ((1 << BITS) - 1);
    (exponent << BITS) + u32::try_from(bits).unwrap_or(0)
}

/// Returns the labels of an instance as a JSON object.
#[must_use]
pub fn labels(at: RoleBucket, bounds: &Bounds) -> String {
    let (_, le) = BucketBounds::of(bounds).label(at.bucket);
    json!({"role": ROLES[at.role], "le": le}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn names(bounds: &[u64]) -> BTreeMap<u32, String> {
        let bounds = Bounds::from_config(bounds).expect("good");
        let all = instances(&bounds).into_iter();
        all.map(|(id, name, _)| (id, name)).collect()
    }

    #[test]
    fn instances_are_all_roles_and_bounds_in_order() {
        let bounds = Bounds::default();
        let all = instances(&bounds);
        assert_eq!(all.len(), 4 * 19);
        assert!(all.is_sorted_by(|(one, ..), (other, ..)| one < other));
        let (id, name, at) = &all[19];
        assert_eq!(
            (*id, name.as_str()),
            ((64 << 20) + (3 << 20) + (1 << 18), "prefill::le-10")
        );
        assert_eq!(labels(*at, &bounds), r#"{"le":"10","role":"prefill"}"#);
        let (id, name, at) = &all[18];
        assert_eq!((*id, name.as_str()), ((64 << 20) - 1, "unknown::le-inf"));
        assert_eq!(labels(*at, &bounds), r#"{"le":"+Inf","role":"unknown"}"#);
    }

    #[test]
    fn bound_keeps_its_id_among_other_bounds() {
        let (one, other) = (names(&[1, 10, 25, 1 << 53]), names(&[3, 10, 1_000_000]));
        let id_of = |names: &BTreeMap<u32, String>, wanted: &str| {
            let mut ids = names.iter().filter(|(_, name)| *name == wanted);
            *ids.next().expect("there").0
        };
        for name in ["decode::le-10", "both::le-10", "both::le-inf"] {
            assert_eq!(id_of(&one, name), id_of(&other, name), "{name}");
        }
        let used = |names: &BTreeMap<u32, String>| BTreeSet::from_iter(names.keys().copied());
        assert_eq!(used(&one).intersection(&used(&other)).count(), 4 * 2);
    }

    proptest! {
        #[test]
        fn any_bounds_have_distinct_ids(bounds in prop::collection::btree_set(1..=1_u64 << 53, 1..=32), near in 0..1_u64 << 53) {
            let bounds = Vec::from_iter(bounds);
            let near = Vec::from_iter((1..=32).map(|step| (near + step).min((1 << 53) - 32 + step)));
            for bounds in [bounds, near] {
                let names = names(&bounds);
                prop_assert_eq!(names.len(), 4 * (bounds.len() + 1));
                prop_assert!(names.keys().all(|&id| i32::try_from(id).is_ok()));
            }
        }
    }
}
