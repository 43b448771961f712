// SPDX-License-Identifier: GPL-2.0-or-later

//! Fuzz target: `/etc/pcp.conf`, or the file that `$PCP_CONF` names.

use pmdanixl::config::pcpconf::PcpConf;
use std::path::Path;

/// The input is the file.
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let conf = PcpConf::parse(&text);
    for line in text.lines() {
        let Some((variable, _)) = line.split_once('=').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let value = conf.directory(variable.trim()).expect("it is in the file");
        let value = value.to_str().expect("the file is text");
        assert!(!value.contains('\n'), "{value:?}");
    }
    // With any content, these are our files in the directories that it names.
    for (path, name) in [
        (conf.nixl_conf(), "nixl/nixl.conf"),
        (conf.help(), "nixl/help"),
        (conf.state(), "nixl/state"),
        (conf.instance_cache(39, 0), "config/pmda/39.0"),
    ] {
        assert!(path.ends_with(Path::new(name)), "{path:?}");
    }
    // An added comment changes nothing.
    let more = PcpConf::parse(&format!(
        "#PCP_RUN_DIR=/none\n{text}\n# PCP_VAR_DIR=/none\n"
    ));
    assert_eq!(more.state(), conf.state());
    assert_eq!(more.instance_cache(39, 0), conf.instance_cache(39, 0));
}
