// SPDX-License-Identifier: GPL-2.0-or-later

//! Items of single layers that tests of the whole daemon need.

use pmdanixl::journal::record::RECORD_WORDS;
use pmdanixl::procfs::facts::Facts;
use pmdanixl::procfs::process_dir::ProcessDir;

pub use pmdanixl::discovery::name::is_instance_name;
pub use pmdanixl::event::MAX_VALUE;
pub use pmdanixl::ring::BATCH;
#[allow(unused_imports)] // qa/other_user uses all
pub use pmdanixl::shm::{Lease, LeaseKind, lock};

/// Bytes of a record of the state file, and of the header of the file.
pub const RECORD: usize = 8 * RECORD_WORDS;

/// Container id and pod UID of this process, as the labels of its children have them.
pub fn own_container() -> [Option<String>; 2] {
    let own = ProcessDir::open(std::process::id()).ok();
    let own = own.and_then(|own| Facts::of_process(&own, &mut |_| false));
    let own = own.expect("this process runs");
    ["container_id", "pod_uid"].map(|name| own.get(name).map(str::to_owned))
}
