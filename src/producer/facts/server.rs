//! Role and HTTP port of an engine's server, from its command line and a few variables.
//!
//! | program | role | port |
//! | --- | --- | --- |
//! | vLLM | `kv_role` of `--kv-transfer-config` (vllm/config/kv_transfer.py) | `--port` of `vllm serve` and api_server, 8000 |
//! | SGLang | `--disaggregation-mode` (python/sglang/srt/server_args.py) | `--port` of launch_server and `sglang serve`, 30000 |
//! | TensorRT-LLM | `--server_role` (`ServerRole`, tensorrt_llm/commands/serve.py) | `--port` of trtllm-serve, 8000 |
//! | Dynamo | `--disaggregation-mode`, `--is-prefill-worker`, `--is-decode-worker` (components/src/dynamo) | `DYN_SYSTEM_PORT` |
//! | LMCache in vLLM | `LMCACHE_PD_ROLE`, formerly `LMCACHE_NIXL_ROLE`: sender or receiver | |
//!
//! vLLM takes underscores for hyphens in names up to a dot, and `--kv-transfer-config.kv_role VALUE`, which replaces what was
//! given as JSON (vllm/utils/argparse_utils.py). argparse takes the beginning of a name for the name. The last of several
//! values counts. A role or a port in a configuration file is not read. The default of a port is told only where none was
//! given, and no other option can give one. The only HTTP port of a Dynamo worker is that of its status server.

use super::command::{CommandLine, Program, last};
use super::environ::Environ;
use super::{Engine, number};
use serde::{Deserialize, Serialize};

/// Part of a server in disaggregated inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The server computes the KV cache of prompts, and other servers read it.
    Prefill,
    /// The server generates tokens from a KV cache that another server computed.
    Decode,
    /// The server does both, or its connector can do either.
    Both,
}

impl Role {
    /// The value of the label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Both => "both",
        }
    }

    /// The role of vLLM's `kv_role`.
    fn of_kv_role(text: &str) -> Option<Self> {
        match text {
            "kv_producer" => Some(Self::Prefill),
            "kv_consumer" => Some(Self::Decode),
            "kv_both" => Some(Self::Both),
            _ => None,
        }
    }

    /// The role of `--disaggregation-mode`: SGLang's `null` and Dynamo's `encode` are none.
    fn of_mode(text: &[u8]) -> Option<Self> {
        match text {
            b"prefill" => Some(Self::Prefill),
            b"decode" => Some(Self::Decode),
            b"agg" | b"prefill_and_decode" => Some(Self::Both),
            _ => None,
        }
    }

    /// The role of TensorRT-LLM's `--server_role`, in any case; `mm_encoder` is none.
    fn of_server_role(text: &[u8]) -> Option<Self> {
        match &*text.to_ascii_lowercase() {
            b"context" => Some(Self::Prefill),
            b"generation" => Some(Self::Decode),
            _ => None,
        }
    }

    /// The role of LMCache's variables, which may have quotes around them.
    pub(super) fn of_lmcache(text: &[u8]) -> Option<Self> {
        let quote = |byte: &u8| matches!(byte, b'"' | b'\'');
        let text = match text {
            [first, inner @ .., end] if quote(first) && first == end => inner,
            text => text,
        };
        match &*text.to_ascii_lowercase() {
            b"sender" => Some(Self::Prefill),
            b"receiver" => Some(Self::Decode),
            _ => None,
        }
    }
}

/// Facts that all ranks of an engine's server share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// Part in disaggregated inference.
    pub role: Option<Role>,
    /// HTTP port.
    pub port: Option<u16>,
}

/// Servers by the form of their command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Vllm,
    Sglang,
    TrtLlm,
    Dynamo(Engine),
}

impl Server {
    /// The server that a process is, from its command line and environment; `None` if it is not the process that a server was
    /// started as.
    #[must_use]
    pub fn of(line: &CommandLine, environ: &Environ) -> Option<Self> {
        let (kind, serves) = kind(line)?;
        let options = Options(&line.arguments);
        let mode = options.value("disaggregation-mode").and_then(Role::of_mode);
        let role = match kind {
            Kind::Sglang | Kind::Dynamo(Engine::Sglang | Engine::TrtLlm) => mode,
            Kind::TrtLlm => options.value("server-role").and_then(Role::of_server_role),
            Kind::Vllm => narrowest([options.kv_role(), environ.lmcache_role]),
            Kind::Dynamo(_) => {
                let flag = |name, role| options.has(name).then_some(role);
                let mode = flag("is-prefill-worker", Role::Prefill)
                    .or(flag("is-decode-worker", Role::Decode))
                    .or(mode);
                narrowest([mode, options.kv_role(), environ.lmcache_role])
            }
        };
        // With one of these options the port may be another one, or there is none.
        let (default, others): (_, &[&str]) = match kind {
            Kind::Vllm => (8000, &["config", "headless", "uds"]),
            Kind::Sglang => (30_000, &["config"]),
            Kind::TrtLlm => (8000, &["disagg-cluster-uri"]),
            Kind::Dynamo(_) => (0, &[]),
        };
        let port = match (kind, options.has("port")) {
            (Kind::Dynamo(_), _) => environ.system_port,
            _ if !serves => None,
            (_, true) => options.value("port").and_then(port),
            _ if line.is_whole && !others.iter().any(|name| options.has(name)) => Some(default),
            _ => None,
        };
        Some(Self { role, port })
    }
}

/// A port but 0, which has the kernel choose one. Zeros may stand before it, as for Python's int().
pub(super) fn port(text: &[u8]) -> Option<u16> {
    let zeros = text.iter().take_while(|&&byte| byte == b'0').count();
    number(text.get(zeros..)?, u16::MAX.into())?.parse().ok()
}

/// The first role that is prefill or decode, otherwise the first: a connector for both serves either.
fn narrowest<const N: usize>(roles: [Option<Role>; N]) -> Option<Role> {
    let mut known = roles.into_iter().flatten();
    let first = known.clone().next();
    known.find(|&role| role != Role::Both).or(first)
}

/// The kind of a server's program, and whether it is certain that it serves HTTP at a port.
fn kind(line: &CommandLine) -> Option<(Kind, bool)> {
    let command = line.arguments.first().copied().unwrap_or_default();
    let by_command = |kind| Some((kind, command == b"serve"));
    if let Program::File(path) = line.program {
        match last(path) {
            b"vllm" | b"lmcache_vllm" => return by_command(Kind::Vllm),
            b"sglang" => return by_command(Kind::Sglang),
            // The command is `serve` where it is left out, and then the model comes first.
            b"trtllm-serve" => {
                let serves = command == b"serve" || command.contains(&b'/');
                return Some((Kind::TrtLlm, serves));
            }
            _ => {}
        }
    }
    let module = line.module()?;
    let module = module.strip_suffix(b".__main__").unwrap_or(&module);
    match module {
        b"vllm.entrypoints.openai.api_server" | b"vllm.entrypoints.api_server" => {
            Some((Kind::Vllm, true))
        }
        b"vllm" | b"vllm.entrypoints.cli.main" | b"lmcache_vllm" => by_command(Kind::Vllm),
        b"sglang.launch_server" | b"sglang.srt.entrypoints.http_server" => {
            Some((Kind::Sglang, true))
        }
        b"sglang" | b"sglang.cli.main" => by_command(Kind::Sglang),
        b"tensorrt_llm.commands.serve" => {
            let serves = command == b"serve" || command.contains(&b'/');
            Some((Kind::TrtLlm, serves))
        }
        _ => {
            let engine = Engine::of(line)?;
            module
                .starts_with(b"dynamo.")
                .then_some((Kind::Dynamo(engine), false))
        }
    }
}

/// The options among the arguments of a program: `--name value`, `--name=value` or `--name`.
struct Options<'a>(&'a [&'a [u8]]);

impl<'a> Options<'a> {
    /// Name, key behind a dot in it, and value of each option; the value of one without is what comes next.
    fn all(&self) -> impl Iterator<Item = (Vec<u8>, Option<&'a [u8]>, Option<&'a [u8]>)> {
        let words = self.0.iter().take_while(|word| **word != b"--");
        let next = self.0.iter().skip(1).map(Some).chain([None]);
        words.zip(next).filter_map(|(word, next)| {
            let (option, value) = split_at(word.strip_prefix(b"--")?, b'=');
            let (name, key) = split_at(option, b'.');
            let hyphen = |byte: &u8| if *byte == b'_' { b'-' } else { *byte };
            let name = name.iter().map(hyphen).collect();
            Some((name, key, value.or(next.copied())))
        })
    }

    /// The options that argparse takes for this one: its name, or the beginning of that.
    fn named(&self, name: &str) -> impl Iterator<Item = (Option<&'a [u8]>, Option<&'a [u8]>)> {
        let name = name.as_bytes();
        let is_meant = move |given: &[u8]| given.len() > 1 && name.starts_with(given);
        self.all()
            .filter_map(move |(given, key, value)| is_meant(&given).then_some((key, value)))
    }

    fn has(&self, name: &str) -> bool {
        self.named(name).next().is_some()
    }

    fn value(&self, name: &str) -> Option<&'a [u8]> {
        self.named(name).last()?.1
    }

    /// vLLM's role: that of a key, or else that in JSON.
    fn kv_role(&self) -> Option<Role> {
        #[derive(Deserialize)]
        struct Transfer {
            kv_role: Option<String>,
        }
        let (keys, whole): (Vec<_>, Vec<_>) = self
            .named("kv-transfer-config")
            .partition(|(key, _)| key.is_some());
        if !keys.is_empty() {
            let mut roles = keys.iter().filter(|(key, _)| *key == Some(b"kv_role"));
            let value = roles.next_back()?.1?;
            let text = serde_json::from_slice(value).ok();
            let text = text.or_else(|| Some(std::str::from_utf8(value).ok()?.to_owned()));
            return Role::of_kv_role(&text?);
        }
        let (_, value) = whole.last()?;
        let transfer: Transfer = serde_json::from_slice((*value)?).ok()?;
        Role::of_kv_role(&transfer.kv_role?)
    }
}

/// What stands before the first of these bytes, and what behind it.
fn split_at(text: &[u8], byte: u8) -> (&[u8], Option<&[u8]>) {
    let mut parts = text.splitn(2, |&other| other == byte);
    (parts.next().unwrap_or_default(), parts.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Role and port of a command line whose words have a blank between them, `~` standing for one within a word.
    fn told_with(line: &str, environ: &[u8]) -> Option<(Option<&'static str>, Option<u16>)> {
        let cmdline = (line.replace(' ', "\0") + "\0").replace('~', " ");
        let line = CommandLine::parse(cmdline.as_bytes()).expect("words");
        let environ = Environ::read(environ).expect("memory can be read");
        let server = Server::of(&line, &environ)?;
        Some((server.role.map(Role::name), server.port))
    }

    fn told(line: &str) -> (Option<&'static str>, Option<u16>) {
        told_with(line, b"").unwrap_or_else(|| panic!("{line} is not a server"))
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
            (
                r#"--kv-transfer-config {"kv_role":"kv_producer"} --kv-transfer-config.kv_rank 1"#,
                None,
            ),
            // The outer role is the server's.
            (
                r#"--kv-transfer-config {"kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_role":"kv_producer"}]}}"#,
                Some("both"),
            ),
            // argparse takes the beginning of a name.
            (
                r#"--kv-transfer {"kv_role":"kv_producer"}"#,
                Some("prefill"),
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
            assert_eq!(told(&line).0, role, "{line}");
            assert_eq!(told(&line).1, port.or(Some(8000)), "{line}");
        }
    }

    #[test]
    fn port_is_what_was_given_or_a_documented_default() {
        for (line, port) in [
            ("vllm serve m --port 8100", Some(8100)),
            ("vllm serve m --port=8100", Some(8100)),
            ("vllm serve m --port 8100 --port 8200", Some(8200)),
            ("vllm serve m --por 8100", Some(8100)),
            ("vllm serve m", Some(8000)),
            ("lmcache_vllm serve m", Some(8000)),
            (
                "python3 -m vllm.entrypoints.openai.api_server --model m",
                Some(8000),
            ),
            (
                "python3 /x/site-packages/vllm/entrypoints/openai/api_server.py --port 1",
                Some(1),
            ),
            ("python3 -m vllm.entrypoints.cli.main serve m", Some(8000)),
            ("vllm serve m --config x.yaml", None),
            ("vllm serve m --config=x.yaml --port 8100", Some(8100)),
            ("vllm serve m --headless", None),
            ("vllm serve m --uds /run/vllm", None),
            ("vllm serve m --port", None),
            ("vllm serve m --port x", None),
            ("vllm serve m --port 0", None),
            ("vllm serve m --port 000", None),
            ("vllm serve m --port 08105", Some(8105)),
            ("vllm serve m --port 0x1f", None),
            ("vllm serve m --port 65536", None),
            // A client's is another server's.
            ("vllm bench serve --port 8100", None),
            ("vllm run-batch -i x", None),
            ("vllm", None),
            (
                "python3 -m sglang.launch_server --model-path m",
                Some(30_000),
            ),
            ("python3 -m sglang.launch_server --port 31000", Some(31_000)),
            ("python3 -m sglang.launch_server --config x.yaml", None),
            ("sglang serve --model-path m", Some(30_000)),
            ("trtllm-serve org/m", Some(8000)),
            (
                "/usr/bin/python3 /usr/local/bin/trtllm-serve serve m --port 8001",
                Some(8001),
            ),
            (
                "trtllm-serve org/m --port=8001 --server_role context",
                Some(8001),
            ),
            ("python3 -m tensorrt_llm.commands.serve serve m", Some(8000)),
            ("trtllm-serve serve m --disagg_cluster_uri http://x", None),
            ("trtllm-serve disaggregated -c x.yaml", None),
        ] {
            assert_eq!(told(line).1, port, "{line}");
        }
        // Cut: the port may come later.
        let cut = CommandLine::parse(b"vllm\0serve\0m\0--po").expect("words");
        let server = Server::of(&cut, &Environ::default());
        assert_eq!(server, Some(Server::default()));
    }

    #[test]
    fn roles_of_the_other_engines_are_known() {
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
            assert_eq!(told(line).0, role, "{line}");
        }
    }

    #[test]
    fn variables_tell_lmcache_roles_and_dynamo_ports() {
        let vllm = r#"vllm serve m --kv-transfer-config {"kv_role":"kv_both"}"#;
        for (environ, role) in [
            (&b"LMCACHE_PD_ROLE=sender\0"[..], Some("prefill")),
            (b"LMCACHE_PD_ROLE=\"receiver\"\0", Some("decode")),
            (b"LMCACHE_NIXL_ROLE=RECEIVER\0", Some("decode")),
            (b"LMCACHE_PD_ROLE=proxy\0", Some("both")),
        ] {
            let told = told_with(vllm, environ);
            assert_eq!(told, Some((role, Some(8000))), "{environ:?}");
        }
        let producer = r#"vllm serve m --kv-transfer-config {"kv_role":"kv_producer"}"#;
        let told = |line, environ| told_with(line, environ).expect("a server");
        assert_eq!(
            told(producer, b"LMCACHE_PD_ROLE=receiver\0").0,
            Some("prefill")
        );
        let dynamo = "python3 -m dynamo.vllm --port 8100";
        assert_eq!(told(dynamo, b"DYN_SYSTEM_PORT=8081\0").1, Some(8081));
        for none in [&b""[..], b"DYN_SYSTEM_PORT=0\0", b"DYN_SYSTEM_PORT=-1\0"] {
            assert_eq!(told(dynamo, none).1, None);
        }
        assert_eq!(
            told("vllm serve m", b"DYN_SYSTEM_PORT=8081\0").1,
            Some(8000)
        );
    }

    #[test]
    fn other_program_is_not_a_server() {
        for line in [
            "VLLM::EngineCore",
            "python3 -c from_multiprocessing.spawn_import_spawn_main --port 8100",
            "python3 bench.py --port 8100",
            "bash -c vllm~serve~m~--port~8100",
            "python3 -m sglang.bench_serving --port 30000",
            "python3 -m sglang_router.launch_router --port 30000",
            "python3 -m dynamo.frontend --http-port 8000",
            "lmcache_server localhost 65432",
            "trtllm-bench --model m --port 1",
        ] {
            assert_eq!(told_with(line, b""), None, "{line}");
        }
    }
}
