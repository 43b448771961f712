// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;

fn ok(text: &str) -> Config {
    let loaded = parse(Path::new("nixl.conf"), text).expect("a good configuration");
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    loaded.config
}

fn err(text: &str) -> String {
    parse(Path::new("nixl.conf"), text)
        .expect_err("a bad configuration")
        .to_string()
}

#[test]
fn section_without_keys_gives_the_defaults() {
    assert_eq!(ok("[nixl]"), Config::default());
    assert_eq!(ok("[nixl]\n# user = \"root\"\n"), Config::default());
}

#[test]
fn file_without_the_section_is_an_error() {
    for text in ["", "\n", "# user = \"root\"\n"] {
        assert_eq!(
            err(text),
            "nixl.conf:1: the file has no section [nixl]; write [nixl] above the keys"
        );
    }
}

#[test]
fn shipped_file_gives_the_defaults_and_valid_examples() {
    let shipped = include_str!("../../nixl.conf");
    assert_eq!(ok(shipped), Config::default());
    let examples: Vec<&str> = shipped
        .lines()
        .filter_map(|line| line.strip_prefix("#: "))
        .collect();
    assert!(examples.len() >= 6, "{examples:?}");
    for example in examples {
        ok(&format!("[nixl]\n{example}\n"));
    }
}

#[test]
fn every_key_is_read() {
    let config = ok(
        "[nixl]\nuser = \"root\"\ntelemetry_dir = \"/dev/shm/nixl\"\nmultiproc_dir = [\"/mp\"]\ndrain_interval = \"20ms\"\n\
                     retain = \"1h 30min\"\nremember = \"30days\"\nmax_agents = 7\nmax_capacity = 1024\nowners = [\"root\", 4242]\nobserve = true\n\
                     remove_exited_after = \"1day\"\nproc_facts = false\nidle_after = \"90s\"\n\
                     histogram_buckets_us = [1, 20, 300]\npod_logs = \"/host/logs//\"\n",
    );
    assert_eq!(
        config.user,
        Some(UserAccount {
            name: "root".into(),
            uid: 0,
            gid: 0,
            groups: Vec::new(),
        })
    );
    assert_eq!(config.telemetry_dir[0].path, "/dev/shm/nixl");
    assert_eq!(config.multiproc_dir[0].path, "/mp");
    assert_eq!(
        (config.drain_interval, config.retain),
        (Duration::from_millis(20), Duration::from_secs(5400))
    );
    assert_eq!(config.remember, Duration::from_secs(30 * 86_400));
    assert_eq!(
        (config.max_agents, config.max_capacity, config.observe),
        (7, 1024, true)
    );
    assert_eq!(config.owners, Some(vec![0, 4242]));
    assert_eq!(config.idle_after, Duration::from_secs(90));
    assert_eq!(config.bounds.as_slice(), [1, 20, 300]);
    assert_eq!(
        (config.remove_exited_after, config.proc_facts),
        (Some(Duration::from_secs(86_400)), false)
    );
    assert_eq!(config.pod_logs, Path::new("/host/logs"));
}

#[test]
fn directories_are_a_path_or_a_list_with_patterns_and_labels() {
    let config =
        ok("[nixl]\ntelemetry_dir = [\"/a\", { path = \"/b/*/nixl\", label = \"gpu-0\" }]\n");
    let [a, b] = &config.telemetry_dir[..] else {
        panic!("two directories")
    };
    assert!(a.literal && a.label.is_none());
    assert!(!b.literal && b.label.as_deref() == Some("gpu-0"));
    assert_eq!(
        ok("[nixl]\ntelemetry_dir = { path = \"/b\", label = \"x\" }\n")
            .telemetry_dir
            .len(),
        1
    );
}

#[test]
fn message_about_a_file_has_no_control_characters() {
    let message = err("[nixl]\n\"a\\nb\\u001b[2J\" = 1\n");
    assert!(
        message.contains(" = 1: unknown key `a b [2J`: see nixl.conf(5)"),
        "{message:?}"
    );
    let message = err("[nixl]\ntelemetry_dir = /a\n\u{1b}c = 1\n");
    assert!(
        message.starts_with("nixl.conf:2: telemetry_dir = /a: ") && !message.contains('\u{1b}'),
        "{message:?}"
    );
}

#[test]
fn errors_name_file_line_key_and_remedy() {
    let cases = [
        (
            "[nixl]\nuser = \"nosuchuser\"\n",
            "nixl.conf:2: user = \"nosuchuser\": user \"nosuchuser\" is not in /etc/passwd; in place of the name write the number that `id -u nosuchuser` prints, without quotes",
        ),
        (
            "[nixl]\nuser = \"4242\"\n",
            "nixl.conf:2: user = \"4242\": user \"4242\" is not in /etc/passwd; in place of",
        ),
        (
            "[nixl]\nuser = -1\n",
            "nixl.conf:2: user = -1: write a user name in quotes, or a user id, such as 1000",
        ),
        (
            "[nixl]\nowners = [1, \"nosuchuser\"]\n",
            "nixl.conf:2: owners = [1, \"nosuchuser\"]: user \"nosuchuser\" is not in /etc/passwd; in place of",
        ),
        (
            "[nixl]\n\ndrain_interval = 50\n",
            "nixl.conf:3: drain_interval = 50: write a time from 1ms to 1s in quotes and with its unit",
        ),
        (
            "[nixl]\ndrain_interval = \"5s\"\n",
            "nixl.conf:2: drain_interval = \"5s\": write a time from 1ms to 1s in quotes",
        ),
        (
            "[nixl]\ndrain_interval = \"0ms\"\n",
            "nixl.conf:2: drain_interval = \"0ms\": write a time from 1ms to 1s in quotes",
        ),
        (
            "[nixl]\nretain = \"long\"\n",
            "nixl.conf:2: retain = \"long\": write a time from 0s to 7days in quotes and with its unit, such as \"7days\"",
        ),
        (
            "[nixl]\nmax_agents = \"5\"\n",
            "nixl.conf:2: max_agents = \"5\": write a number from 1 to 100000, without quotes",
        ),
        (
            "[nixl]\nmax_agent = 5\nretane = 7\n",
            "nixl.conf:2: max_agent = 5: unknown key `max_agent`: did you mean `max_agents`?",
        ),
        (
            "[nixl]\nowners = \"root\"\n",
            "nixl.conf:2: owners = \"root\": write a list of user names",
        ),
        (
            "[nixl]\nmax_agents = 0\n",
            "nixl.conf:2: max_agents = 0: write a number from 1 to 100000",
        ),
        (
            "[nixl]\nmax_capacity = -1\n",
            "nixl.conf:2: max_capacity = -1: write a number from 1 to 1099511627776",
        ),
        (
            "[nixl]\ntelemetry_dir = \"tmp\"\n",
            "nixl.conf:2: telemetry_dir = \"tmp\": \"tmp\" is not an absolute path; begin it with /",
        ),
        (
            "[nixl]\ntelemetry_dir = [\n  \"/a\",\n  7,\n]\n",
            "nixl.conf:2: telemetry_dir: write a path in quotes",
        ),
        (
            "[nixl]\ntelemetry_dir = \"/a/[\"\n",
            "nixl.conf:2: telemetry_dir = \"/a/[\": \"/a/[\" is not a valid pattern",
        ),
        (
            "[nixl]\ntelemetry_dir = \"/a/**/b\"\n",
            "nixl.conf:2: telemetry_dir = \"/a/**/b\": \"/a/**/b\" contains **, which is not supported",
        ),
        (
            "[nixl]\ntelemetry_dir = []\n",
            "nixl.conf:2: telemetry_dir = []: an empty list finds no agent unless",
        ),
        (
            "[nixl]\nproc_facts = \"yes\"\n",
            "nixl.conf:2: proc_facts = \"yes\": invalid type: string \"yes\", expected a boolean",
        ),
        (
            "[nixl]\nowners = []\n",
            "nixl.conf:2: owners = []: write a list of user names in quotes and user ids",
        ),
        (
            "[nixl]\nowners = [-1]\n",
            "nixl.conf:2: owners = [-1]: write a list of user names in quotes and user ids",
        ),
        (
            "[nixl]\ntelemetry_dir = { path = \"/a\", label = \"x y\" }\n",
            "nixl.conf:2: telemetry_dir = { path = \"/a\", label = \"x y\" }: label \"x y\" is not",
        ),
        (
            "[nixl]\ntelemtry_dir = \"/a\"\n",
            "nixl.conf:2: telemtry_dir = \"/a\": unknown key `telemtry_dir`: did you mean `telemetry_dir`?",
        ),
        (
            "[nixl]\nowners = [1]\nretain\n",
            "nixl.conf:3: retain: key with no value",
        ),
        (
            "[nxil]\n",
            "nixl.conf:1: [nxil]: unknown key `nxil`: did you mean `nixl`?",
        ),
        (
            "# rings\nobserve = true\n",
            "nixl.conf:2: observe = true: unknown key `observe`: write the keys below [nixl]",
        ),
        (
            "retain = \"1min\"\n[nixl]\n",
            "nixl.conf:1: retain = \"1min\": unknown key `retain`: write the keys below [nixl]",
        ),
        (
            "[nixl]\nobserve = \"yes\"\n",
            "nixl.conf:2: observe = \"yes\": invalid type: string \"yes\", expected a boolean",
        ),
        (
            "[nixl]\npod_logs = 5\n",
            "nixl.conf:2: pod_logs = 5: invalid type: integer `5`, expected a string",
        ),
        (
            "[nixl]\nretain = \"10min\n",
            "nixl.conf:2: retain = \"10min: invalid basic string",
        ),
    ];
    for (text, expected) in cases {
        let message = err(text);
        assert!(
            message.starts_with(expected),
            "{text:?} gave\n{message}\nnot\n{expected}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn redundant_slashes_are_removed() {
    let config = ok("[nixl]\ntelemetry_dir = [\"/a//b/\", \"/c/*//d/\"]\n");
    assert_eq!(config.telemetry_dir[0].path, "/a/b");
    assert_eq!(config.telemetry_dir[1].path, "/c/*/d");
}

#[test]
fn file_of_the_python_pmda_loads_with_a_warning_in_toml() {
    let text = "# comment\n[nixl]\nUser = root\ntelemetry_dir: /dev/shm\n; more\n";
    let loaded = parse(Path::new("nixl.conf"), text).expect("the Python PMDA's format");
    assert_eq!(loaded.config.telemetry_dir[0].path, "/dev/shm");
    assert_eq!(loaded.config.user.as_ref().map(|user| user.uid), Some(0));
    let [warning] = &loaded.warnings[..] else {
        panic!("{:?}", loaded.warnings)
    };
    assert!(
        warning.ends_with("[nixl]; user = \"root\"; telemetry_dir = \"/dev/shm\""),
        "{warning}"
    );
}

#[test]
fn unquoted_value_is_an_error_with_what_the_key_accepts() {
    for (text, expected) in [
        (
            "user = root\nusr = nobody",
            "2: user = root: write its value in quotes: user = \"root\"",
        ),
        (
            "user = \"root\"\nidle_after = 2min",
            "3: idle_after = 2min: write its value in quotes: idle_after = \"2min\"",
        ),
        (
            "observe = yes # for now",
            "2: observe = yes # for now: invalid type: string \"yes\", expected a boolean",
        ),
        (
            "max_agents = many",
            "2: max_agents = many: write a number from 1 to 100000, without quotes",
        ),
        (
            "owners = root",
            "2: owners = root: write a list of user names in quotes",
        ),
        (
            "usr = root",
            "2: usr = root: unknown key `usr`: did you mean `user`?",
        ),
        (
            "\ntelemetry_dir = /a # rings",
            "3: telemetry_dir = /a # rings: write its value in quotes: telemetry_dir = \"/a\"",
        ),
        (
            "telemetry_dir = /a\t;rings",
            "2: telemetry_dir = /a ;rings: write its value in quotes: telemetry_dir = \"/a\"",
        ),
        ("# a\rtelemetry_dir = /a\nuser = root", "2: "),
        // The value is TOML, and the mistake is another one.
        (
            "max_agents = 5\nmax_agents = 6",
            "3: max_agents = 6: duplicate key",
        ),
    ] {
        let message = err(&format!("[nixl]\n{text}\n"));
        let expected = format!("nixl.conf:{expected}");
        assert!(
            message.starts_with(&expected),
            "{text:?} gave\n{message}\nnot\n{expected}"
        );
    }
}

#[test]
fn each_key_is_named_for_its_misspelling() {
    let all = toml::from_str::<Config>("xyz = 5").expect_err("no key");
    let keys = Vec::from_iter(all.message().split('`').skip(3).step_by(2));
    assert!(keys.len() > 10, "{keys:?}");
    for key in keys {
        // A letter is left out.
        for at in 1..key.len() {
            let misspelt = format!("{}{}", &key[..at], &key[at + 1..]);
            let message = err(&format!("[nixl]\n{misspelt} = 5\n"));
            let expected = format!("unknown key `{misspelt}`: did you mean `{key}`?");
            assert!(message.contains(&expected), "{message}");
        }
    }
    let message = err("[nixl]\nxyz = 5\n");
    assert!(
        message.contains("unknown key `xyz`: see nixl.conf(5)"),
        "{message}"
    );
}

#[test]
fn user_without_a_name_has_a_group_of_the_same_number() {
    let number = u32::MAX - 1;
    let config = ok(&format!("[nixl]\nuser = {number}\n"));
    let user = config.user.expect("a user");
    assert_eq!(
        (user.uid, user.gid, &*user.groups),
        (number, number, &[][..])
    );
}

#[test]
fn wrong_value_in_python_format_is_an_error_at_its_line() {
    assert!(
        err("[nixl]\n# x\nuser = nosuchuser\n")
            .starts_with("nixl.conf:3: user = \"nosuchuser\": user \"nosuchuser\" is not in")
    );
}

#[test]
fn environment_overrides_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("nixl.conf");
    std::fs::write(&path, "[nixl]\ntelemetry_dir = \"/a\"\n").expect("written");
    let dirs = |env: Option<&str>| {
        let environment = [env.map(OsString::from), None];
        load(&path, false, &environment).map(|loaded| loaded.config.telemetry_dir)
    };
    assert_eq!(dirs(None).expect("good")[0].path, "/a");
    assert_eq!(dirs(Some("")).expect("good")[0].path, "/a");
    let from_env = &dirs(Some("/b[1]")).expect("good")[0];
    assert!(from_env.path == "/b[1]" && from_env.literal, "{from_env:?}");
    let message = dirs(Some("b")).expect_err("no absolute path").to_string();
    assert!(
        message
            .starts_with("environment variable NIXL_TELEMETRY_DIR: \"b\" is not an absolute path"),
        "{message}"
    );
    let environment = [None, Some("/mp".into())];
    let loaded = load(&path, false, &environment).expect("good");
    assert_eq!(loaded.config.multiproc_dir[0].path, "/mp");
    assert_eq!(
        loaded.notes,
        ["multiproc_dir: set by environment variable NIXL_TELEMETRY_MULTIPROC_DIR"]
    );
    let missing = load(&dir.path().join("none"), false, &Environment::default())
        .expect_err("no file")
        .to_string();
    assert!(missing.contains("none: No such file"), "{missing}");
}

#[test]
fn special_or_too_long_file_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("made");
    let long = dir.path().join("long");
    std::fs::write(&long, " ".repeat((1 << 20) + 1)).expect("written");
    let latin = dir.path().join("latin");
    std::fs::write(&latin, b"[nixl]\n# gr\xfc\xdfe\n").expect("written");
    for (path, why) in [
        (Path::new("/dev/zero"), "is not a regular file"),
        (&fifo, "is not a regular file"),
        (dir.path(), "is not a regular file"),
        (&long, "is longer than 1048576 bytes"),
        (&latin, "save the file as UTF-8"),
    ] {
        let error = load(path, false, &Environment::default()).expect_err("an invalid file");
        let message = error.to_string();
        assert!(message.contains(why), "{path:?}: {message}");
    }
}
