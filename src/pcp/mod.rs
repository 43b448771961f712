// SPDX-License-Identifier: GPL-2.0-or-later

//! Connection to pmcd through libpcp_pmda. Only this module knows the types of that library. Start with `daemon` (the
//! event loop) and `server` (the state behind it).
//!
//! libpcp is not called, because its soname differs between PCP 6 and 7. The few shifts of `pmID_build` and
//! `pmInDom_build` are here.

pub mod answer;
pub mod buckets;
pub mod callbacks;
mod current;
pub mod daemon;
mod event_records;
pub mod ffi;
pub mod instances;
pub mod log_file;
pub mod profile;
pub mod role_times;
pub mod server;
mod sys;
mod work;

/// Builds a pmID as libpcp's `pmID_build` does: domain (9 bits), cluster (12 bits), item (10 bits).
#[must_use]
pub fn pmid(domain: u32, cluster: u32, item: u32) -> u32 {
    ((domain & 0x1ff) << 22) | ((cluster & 0xfff) << 10) | (item & 0x3ff)
}

/// Returns the cluster and the item of a pmID.
#[must_use]
pub fn cluster_and_item(pmid: u32) -> (u32, u32) {
    ((pmid >> 10) & 0xfff, pmid & 0x3ff)
}

/// Builds a pmInDom as libpcp's `pmInDom_build` does: domain (9 bits), serial number (22 bits).
#[must_use]
pub fn indom(domain: u32, serial: u32) -> u32 {
    ((domain & 0x1ff) << 22) | (serial & 0x3f_ffff)
}

/// Returns the serial number of a pmInDom.
#[must_use]
pub fn serial(indom: u32) -> u32 {
    indom & 0x3f_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pmid_and_indom_match_libpcp() {
        assert_eq!((indom(39, 0), serial(0x9c0_0003)), (0x9c0_0000, 3));
        assert_eq!(pmid(39, 3, 11), 0x9c0_0c0b);
        assert_eq!(cluster_and_item(0x9c0_0c0b), (3, 11));
    }
}
