// SPDX-License-Identifier: GPL-2.0-or-later

//! Role and HTTP port of an engine's server, from its command line and two variables.
//!
//! | program | role | port |
//! | --- | --- | --- |
//! | vLLM | `kv_role` of `--kv-transfer-config` (vllm/config/kv_transfer.py) | `--port` of `vllm serve` and api_server |
//! | SGLang | `--disaggregation-mode` (python/sglang/srt/server_args.py) | `--port` of launch_server and `sglang serve` |
//! | TensorRT-LLM | `--server_role` (`ServerRole`, tensorrt_llm/commands/serve.py) | `--port` of trtllm-serve |
//! | Dynamo | `--disaggregation-mode`, `--is-prefill-worker`, `--is-decode-worker` (components/src/dynamo) | `DYN_SYSTEM_PORT` |
//! | LMCache in vLLM | `LMCACHE_PD_ROLE`: sender or receiver | |
//!
//! vLLM takes underscores for hyphens in names up to a dot, and `--kv-transfer-config.kv_role VALUE`, which replaces
//! the value in JSON (vllm/utils/argparse_utils.py). The last of several values counts. A role or a port in a
//! configuration file is not read, and the default port of an engine is not assumed. The only HTTP port of a Dynamo
//! worker is that of its status server.

use crate::procfs::facts::command::{CommandLine, Program};
use crate::procfs::facts::engine;
use crate::procfs::facts::environ::Environ;
use serde_json::Value;
use std::collections::HashMap;

/// Roles that agents are summed by. The first is that of agents without a known role. The place of a role is in
/// instance ids: a new one goes to the end.
pub const ROLES: [&str; 4] = ["unknown", "prefill", "decode", "both"];
/// Variable with the role of LMCache.
pub const LMCACHE_ROLE: &str = "LMCACHE_PD_ROLE";
/// Variable with the HTTP port of a Dynamo worker's status server.
pub const SYSTEM_PORT: &str = "DYN_SYSTEM_PORT";

/// Facts that all ranks of an engine's server share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineServer {
    /// Engine, as in labels.
    pub engine: &'static str,
    /// Role in disaggregated inference. `prefill` computes the KV cache of prompts, which other servers read. `decode`
    /// generates tokens from a KV cache that another server computed. `both`: the connector can do either.
    pub role: Option<&'static str>,
    /// HTTP port.
    pub port: Option<u16>,
}

impl EngineServer {
    /// Returns the server that a process was started as, from its command line and its environment, if that can be
    /// read; `None` if the process is not a server.
    #[must_use]
    pub fn of(line: &CommandLine, environ: Option<&Environ>) -> Option<Self> {
        let variable = |name| environ?.get(name);
        let is_titled = matches!(line.program, Program::Title(_));
        let engine = engine::of(line).filter(|_| !is_titled)?;
        let name = line.name();
        let options = options(&line.arguments);
        let option = |name: &str| options.get(name).copied();
        let flag = |name, role| option(name).map(|_| role);
        // vLLM: the value of the key comes before the one in JSON.
        let json = option("kv-transfer-config").and_then(|json| serde_json::from_str(json).ok());
        let json: Value = json.unwrap_or_default();
        let kv_role = option("kv-transfer-config.kv-role").or(json["kv_role"].as_str());
        let text = [
            flag("is-prefill-worker", "prefill"),
            flag("is-decode-worker", "decode"),
            option("disaggregation-mode"),
            option("server-role"),
            kv_role,
            variable(LMCACHE_ROLE),
        ];
        let roles = Vec::from_iter(text.into_iter().flatten().filter_map(role));
        // `both` is weaker than a definite role.
        let narrow = roles.iter().find(|&&role| role != "both");
        let port = match name.starts_with("dynamo.") {
            true => variable(SYSTEM_PORT),
            false => option("port").filter(|_| serves_http(&name, line.arguments.first())),
        };
        Some(Self {
            engine,
            role: narrow.or(roles.first()).copied(),
            port: port.and_then(|text| text.parse().ok().filter(|&port| port != 0)),
        })
    }
}

/// Returns the role for an engine's word. SGLang's `null`, Dynamo's `encode` and TensorRT-LLM's `mm_encoder` are not
/// roles.
fn role(text: &str) -> Option<&'static str> {
    match &*text.trim_matches('"').to_ascii_lowercase() {
        "prefill" | "kv_producer" | "context" | "sender" => Some("prefill"),
        "decode" | "kv_consumer" | "generation" | "receiver" => Some("decode"),
        "kv_both" | "agg" | "prefill_and_decode" => Some("both"),
        _ => None,
    }
}

/// True if a program serves HTTP at its `--port`. That of a client belongs to another server.
fn serves_http(name: &str, command: Option<&String>) -> bool {
    let command = command.map_or("", |command| command);
    match name.strip_suffix(".__main__").unwrap_or(name) {
        "vllm" | "lmcache_vllm" | "vllm.entrypoints.cli.main" | "sglang" | "sglang.cli.main" => {
            command == "serve"
        }
        // `serve` is the default command. Without it, the model comes first.
        "trtllm-serve" | "tensorrt_llm.commands.serve" => {
            command == "serve" || command.contains('/')
        }
        "vllm.entrypoints.openai.api_server"
        | "vllm.entrypoints.api_server"
        | "sglang.launch_server"
        | "sglang.srt.entrypoints.http_server" => true,
        _ => false,
    }
}

/// Returns the last value of each option among the arguments of a program: `--name value`, `--name=value` or `--name`.
/// An option without a value gets the next word. Underscores in names become hyphens.
fn options(arguments: &[String]) -> HashMap<String, &str> {
    let next = arguments.iter().skip(1).map(String::as_str).chain([""]);
    let words = arguments.iter().take_while(|word| *word != "--").zip(next);
    let options = words.filter_map(|(word, next)| {
        let option = word.strip_prefix("--")?;
        let (name, value) = option.split_once('=').unwrap_or((option, next));
        Some((name.replace('_', "-"), value))
    });
    options.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns role and port of a command line. A space separates words; `~` stands for a space within a word.
    fn role_and_port_with(
        line: &str,
        environ: &[u8],
    ) -> Option<(Option<&'static str>, Option<u16>)> {
        let cmdline = (line.replace(' ', "\0") + "\0").replace('~', " ");
        let line = CommandLine::parse(cmdline.as_bytes()).expect("words");
        let environ = Environ::read(environ, &[LMCACHE_ROLE, SYSTEM_PORT]).expect("it is read");
        let server = EngineServer::of(&line, Some(&environ))?;
        let is_summed = server.role.is_none_or(|role| ROLES[1..].contains(&role));
        assert!(is_summed, "{:?} is not in ROLES", server.role);
        Some((server.role, server.port))
    }

    fn role_and_port(line: &str) -> (Option<&'static str>, Option<u16>) {
        role_and_port_with(line, b"").unwrap_or_else(|| panic!("{line} is not a server"))
    }

    #[test]
    fn vllm_role_is_found_in_every_spelling() {
        for (arguments, role) in [
            (
                r#"--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_producer"}"#,
                Some("prefill"),
            ),
            (
                r#"--kv_transfer_config {"kv_role":"kv_consumer"}"#,
                Some("decode"),
            ),
            (
                r#"--kv-transfer-config={"kv_role":"kv_both"}"#,
                Some("both"),
            ),
            (
                r#"--kv-transfer-config {~"kv_connector":~"NixlConnector",~"kv_role"~:~"kv_both",~"kv_buffer_size":~1e9}"#,
                Some("both"),
            ),
            (
                "--kv-transfer-config.kv_connector NixlConnector --kv-transfer-config.kv_role kv_producer",
                Some("prefill"),
            ),
            ("--kv_transfer_config.kv_role=kv_consumer", Some("decode")),
            (r#"--kv-transfer-config.kv_role "kv_both""#, Some("both")),
            // What comes later counts, and keys replace what is JSON.
            (
                r#"--kv-transfer-config {"kv_role":"kv_both"} --kv-transfer-config {"kv_role":"kv_producer"}"#,
                Some("prefill"),
            ),
            (
                r#"--kv-transfer-config.kv_role kv_consumer --kv-transfer-config {"kv_role":"kv_producer"}"#,
                Some("decode"),
            ),
            // The outer role is the server's.
            (
                r#"--kv-transfer-config {"kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_role":"kv_producer"}]}}"#,
                Some("both"),
            ),
            ("", None),
            (r#"--kv-transfer-config {"kv_role":"kv_other"}"#, None),
            (r#"--kv-transfer-config {"kv_role":7}"#, None),
            (r#"--kv-transfer-config {'kv_role':'kv_producer'}"#, None),
            ("--kv-transfer-config", None),
            ("--kv-transfer-config.kv_role", None),
            (r#"--kv-transfer-configs {"kv_role":"kv_producer"}"#, None),
            (r#"-- --kv-transfer-config {"kv_role":"kv_producer"}"#, None),
            (
                r#"--served-model-name=--kv-transfer-config={"kv_role":"kv_producer"}"#,
                None,
            ),
        ] {
            let line = format!("/usr/bin/python3 /usr/bin/vllm serve m {arguments} --port 8100");
            let port = (!arguments.starts_with("-- ")).then_some(8100);
            assert_eq!(role_and_port(&line).0, role, "{line}");
            assert_eq!(role_and_port(&line).1, port, "{line}");
        }
    }

    #[test]
    fn port_is_what_an_option_of_a_server_gives() {
        for (line, port) in [
            ("vllm serve m --port 8100", Some(8100)),
            ("vllm serve m --port=8100", Some(8100)),
            ("vllm serve m --port 8100 --port 8200", Some(8200)),
            ("vllm serve m", None),
            ("lmcache_vllm serve m --port 7", Some(7)),
            (
                "python3 -m vllm.entrypoints.openai.api_server --port 7",
                Some(7),
            ),
            (
                "python3 /x/site-packages/vllm/entrypoints/openai/api_server.py --port 1",
                Some(1),
            ),
            (
                "python3 -m vllm.entrypoints.cli.main serve m --port 7",
                Some(7),
            ),
            ("vllm serve m --config=x.yaml --port 8100", Some(8100)),
            ("vllm serve m --port", None),
            ("vllm serve m --port x", None),
            ("vllm serve m --port 0", None),
            ("vllm serve m --port 000", None),
            ("vllm serve m --port 08105", Some(8105)),
            ("vllm serve m --port 0x1f", None),
            ("vllm serve m --port 65536", None),
            // The port of a client belongs to another server.
            ("vllm bench serve --port 8100", None),
            ("vllm run-batch -i x", None),
            ("vllm", None),
            ("python3 -m sglang.bench_serving --port 30000", None),
            ("lmcache_server localhost 65432", None),
            ("trtllm-bench --model m --port 1", None),
            ("python3 -m sglang.launch_server --model-path m", None),
            ("python3 -m sglang.launch_server --port 31000", Some(31_000)),
            ("sglang serve --port 7", Some(7)),
            ("trtllm-serve org/m", None),
            (
                "/usr/bin/python3 /usr/local/bin/trtllm-serve serve m --port 8001",
                Some(8001),
            ),
            (
                "trtllm-serve org/m --port=8001 --server_role context",
                Some(8001),
            ),
            (
                "python3 -m tensorrt_llm.commands.serve serve m --port 7",
                Some(7),
            ),
            ("trtllm-serve disaggregated -c x.yaml", None),
        ] {
            assert_eq!(role_and_port(line).1, port, "{line}");
        }
    }

    #[test]
    fn roles_of_other_engines_are_found() {
        for (line, role) in [
            (
                "python3 -m sglang.launch_server --disaggregation-mode prefill",
                Some("prefill"),
            ),
            (
                "python3 -m sglang.launch_server --disaggregation-mode=decode",
                Some("decode"),
            ),
            (
                "python3 -m sglang.launch_server --disaggregation-mode null",
                None,
            ),
            ("python3 -m sglang.launch_server", None),
            ("sglang serve --disaggregation-mode decode", Some("decode")),
            (
                "trtllm-serve serve m --server_role CONTEXT",
                Some("prefill"),
            ),
            (
                "trtllm-serve org/m --server_role=generation",
                Some("decode"),
            ),
            ("trtllm-serve org/m --server_role mm_encoder", None),
            (
                "python3 -m dynamo.vllm --model m --is-prefill-worker",
                Some("prefill"),
            ),
            (
                "python3 -m dynamo.vllm --model m --is-decode-worker",
                Some("decode"),
            ),
            (
                "python3 -m dynamo.vllm.__main__ --disaggregation-mode decode",
                Some("decode"),
            ),
            (
                r#"python3 -m dynamo.vllm --disaggregation-mode prefill --kv-transfer-config {"kv_role":"kv_both"}"#,
                Some("prefill"),
            ),
            (
                r#"python3 -m dynamo.vllm --disaggregation-mode agg --kv-transfer-config {"kv_role":"kv_both"}"#,
                Some("both"),
            ),
            ("python3 -m dynamo.vllm --no-is-prefill-worker", None),
            (
                "python3 -m dynamo.sglang --disaggregation-mode decode",
                Some("decode"),
            ),
            (
                "python3 -m dynamo.trtllm --disaggregation-mode prefill_and_decode",
                Some("both"),
            ),
            (
                "python3 -m dynamo.trtllm --disaggregation-mode prefill",
                Some("prefill"),
            ),
            (
                "python3 -m dynamo.trtllm --disaggregation-mode encode",
                None,
            ),
        ] {
            assert_eq!(role_and_port(line).0, role, "{line}");
        }
    }

    #[test]
    fn environment_has_lmcache_roles_and_dynamo_ports() {
        let vllm = r#"vllm serve m --kv-transfer-config {"kv_role":"kv_both"}"#;
        for (environ, role) in [
            (&b"LMCACHE_PD_ROLE=sender\0"[..], Some("prefill")),
            (b"LMCACHE_PD_ROLE=\"receiver\"\0", Some("decode")),
            (b"LMCACHE_PD_ROLE=proxy\0", Some("both")),
        ] {
            let found = role_and_port_with(vllm, environ);
            assert_eq!(found, Some((role, None)), "{environ:?}");
        }
        let producer = r#"vllm serve m --kv-transfer-config {"kv_role":"kv_producer"}"#;
        let with = |line, environ| role_and_port_with(line, environ).expect("a server");
        assert_eq!(
            with(producer, b"LMCACHE_PD_ROLE=receiver\0").0,
            Some("prefill")
        );
        let dynamo = "python3 -m dynamo.vllm --port 8100";
        assert_eq!(with(dynamo, b"DYN_SYSTEM_PORT=8081\0").1, Some(8081));
        for none in [&b""[..], b"DYN_SYSTEM_PORT=0\0", b"DYN_SYSTEM_PORT=-1\0"] {
            assert_eq!(with(dynamo, none).1, None);
        }
        assert_eq!(
            with("vllm serve m --port 7", b"DYN_SYSTEM_PORT=8081\0").1,
            Some(7)
        );
    }

    #[test]
    fn other_program_is_not_a_server() {
        for line in [
            "VLLM::EngineCore",
            "python3 -c from_multiprocessing.spawn_import_spawn_main --port 8100",
            "python3 bench.py --port 8100",
            "bash -c vllm~serve~m~--port~8100",
            "python3 -m sglang_router.launch_router --port 30000",
            "python3 -m dynamo.frontend --http-port 8000",
        ] {
            assert_eq!(role_and_port_with(line, b""), None, "{line}");
        }
    }
}
