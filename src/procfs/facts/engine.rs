// SPDX-License-Identifier: GPL-2.0-or-later

//! Inference engine that a process is part of, from its command line (`/proc/PID/cmdline`, NUL-separated).
//!
//! Arguments name models, files and prompts, which may contain the name of an engine. So only three places count:
//! - the beginning of the first word, if the process has given itself a title: vLLM's `VLLM::EngineCore`,
//!   `VLLM::Worker_TP0`, SGLang's `sglang::scheduler_TP0`;
//! - the program: the first word, or the script that a Python interpreter was given, which is the first word behind its
//!   options. Its file name counts (`/opt/venv/bin/vllm`), or the package that it belongs to
//!   (`.../site-packages/tensorrt_llm/...`);
//! - the module behind the interpreter's `-m`.
//!
//! A title of several engines does not count: `ray::RayWorkerWrapper` is vLLM's, TensorRT-LLM's and LMDeploy's. Neither
//! does `python -c`, with which Python starts the children of all engines. Children that create agents give themselves
//! titles.

use crate::procfs::facts::command::{CommandLine, Program};

/// Returns the engine that a process with this command line is part of, as in labels: `vllm`, `sglang`, `trtllm`,
/// `kvbm` or `lmcache`.
#[must_use]
pub fn of(line: &CommandLine) -> Option<&'static str> {
    let name = line.name();
    let first = match &line.program {
        Program::Title(title) if title.starts_with("VLLM::") => "vllm",
        Program::Title(title) if title.starts_with("sglang::") => "sglang",
        Program::File(path) if path.ends_with(&name) => &name,
        // Dynamo has a package for each engine that it runs.
        _ => name
            .strip_prefix("dynamo.")
            .unwrap_or(&name)
            .split('.')
            .next()?,
    };
    match first {
        // lmcache_vllm is vLLM with LMCache in it.
        "vllm" | "lmcache_vllm" => Some("vllm"),
        "sglang" => Some("sglang"),
        "tensorrt_llm" | "trtllm" => Some("trtllm"),
        "kvbm" => Some("kvbm"),
        program if program.starts_with("trtllm-") => Some("trtllm"),
        program if program.starts_with("lmcache") => Some("lmcache"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the engine of a command line with single spaces between its words.
    fn engine(line: &str) -> Option<&'static str> {
        let cmdline = line.replace(' ', "\0") + "\0";
        of_command_line(cmdline.as_bytes())
    }

    fn of_command_line(cmdline: &[u8]) -> Option<&'static str> {
        of(&CommandLine::parse(cmdline)?)
    }

    #[test]
    fn vllm_is_found_by_command_module_and_title() {
        for line in [
            "vllm serve Qwen/Qwen3-0.6B --port 8000",
            "/usr/bin/python3 /usr/local/bin/vllm serve Qwen/Qwen3-14B --tensor-parallel-size 4",
            "/opt/venv/bin/python3.12 /opt/venv/bin/vllm serve m",
            "python3 -m vllm.entrypoints.openai.api_server --model m",
            "python -u -m vllm.entrypoints.openai.api_server",
            "python -um vllm.entrypoints.cli.main serve m",
            "python3 -X dev -W ignore -Wdefault -Xfrozen_modules=off -OO -m vllm.entrypoints.api_server",
            "python3 /usr/local/lib/python3.12/dist-packages/vllm/entrypoints/openai/api_server.py",
            "python3 -- /usr/local/bin/vllm serve",
            "python3 -m dynamo.vllm --model m --is-prefill-worker",
            "python3 -m dynamo.vllm.main",
            "/usr/bin/python3 /usr/local/bin/lmcache_vllm serve m",
            "VLLM::Worker_TP0",
            "VLLM::Worker_PP0_TP1_EP1",
            "VLLM::EngineCore",
            "VLLM::EngineCore_DP0",
        ] {
            assert_eq!(engine(line), Some("vllm"), "{line}");
        }
        // A title overwrites the command line, and NULs fill the rest.
        let title = b"VLLM::Worker_TP3\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(of_command_line(title), Some("vllm"));
    }

    #[test]
    fn sglang_is_found_by_command_module_and_title() {
        for line in [
            "python3 -m sglang.launch_server --model-path m --disaggregation-mode prefill",
            "python -m sglang.srt.entrypoints.http_server",
            "/opt/venv/bin/python /opt/venv/bin/sglang serve --model-path m",
            "python3 -m dynamo.sglang --model m",
            "python3 -m dynamo.sglang.decode_worker",
            "sglang::scheduler_TP0",
            "sglang::scheduler_DP1_TP3",
            "sglang::scheduler",
            "sglang::detokenizer",
        ] {
            assert_eq!(engine(line), Some("sglang"), "{line}");
        }
    }

    #[test]
    fn tensorrt_llm_is_found_by_command_and_module() {
        for line in [
            "/usr/bin/python3 /usr/local/bin/trtllm-serve m --backend pytorch --tp_size 8",
            "trtllm-serve disaggregated -c disagg.yaml",
            "/usr/bin/python3 /usr/local/bin/trtllm-bench --model m throughput",
            "/usr/bin/python3 -m tensorrt_llm.llmapi.mgmn_worker_node",
            "python3 -m tensorrt_llm.llmapi.mgmn_leader_node",
            "python3 -m tensorrt_llm.commands.serve m",
            "/usr/local/lib/python3.12/dist-packages/tensorrt_llm/bin/executorWorker",
            "python3 -m dynamo.trtllm --model-path m --disaggregation-mode prefill",
            "python3 -m dynamo.trtllm.sidecar --grpc-endpoint 127.0.0.1:50051",
        ] {
            assert_eq!(engine(line), Some("trtllm"), "{line}");
        }
    }

    #[test]
    fn lmcache_and_kvbm_are_found_as_programs() {
        for line in [
            "/opt/venv/bin/python3 /opt/venv/bin/lmcache_server localhost 65432",
            "lmcache_controller --port 9000",
            "/usr/bin/python3 /usr/local/bin/lmcache coordinator --host 0.0.0.0",
            "python -m lmcache.v1.api_server --port 9000 --monitor-port 9001",
            "python -m lmcache.v1.multiprocess.server --host 127.0.0.1 --port 5556",
            "python3 -m lmcache.v1.mp_coordinator",
        ] {
            assert_eq!(engine(line), Some("lmcache"), "{line}");
        }
        assert_eq!(engine("python3 -m kvbm.leader"), Some("kvbm"));
    }

    #[test]
    fn engine_name_in_an_argument_does_not_count() {
        for line in [
            "python3 bench.py --backend vllm -m vllm.entrypoints",
            "python3 bench.py /usr/local/bin/vllm",
            "python3 -c vllm",
            "python3 -c import_vllm -m vllm",
            "python3 - -m vllm",
            "python3 -W vllm bench.py",
            "python3 -X -m bench.py vllm",
            "python3 -m debugpy -m vllm",
            "python3 -m torch.distributed.run /usr/local/bin/vllm",
            "python3 /srv/vllm/serve.py",
            "python3 /home/sglang/run.py /site-packages/vllm/x.py",
            "bash -c vllm serve m",
            "cat VLLM::Worker_TP0",
            "tail -f /var/log/vllm",
            "/opt/vllm/bin/router",
            "./client --title sglang::scheduler_TP0",
            "curl http://localhost:8000/v1/completions -d trtllm-serve",
        ] {
            assert_eq!(engine(line), None, "{line}");
        }
        let prompt = b"python3\0ask.py\0-m\0VLLM::Worker_TP0 vllm serve\0";
        assert_eq!(of_command_line(prompt), None);
    }

    #[test]
    fn ambiguous_name_has_no_engine() {
        for line in [
            "ray::RayWorkerWrapper.execute_method",
            "python3 -m dynamo.frontend --router-mode kv",
            "python3 -m dynamo",
            "python3 -m vllm_ascend",
            "python3 -m vllmx.serve",
            "python3 -m my.vllm",
            "/usr/bin/python3 -c from_multiprocessing.spawn_import_spawn_main --multiprocessing-fork",
            "python3 -m",
            "python3 -u",
            "python3",
            "pythonvllm -m vllm",
            "vllm-router",
            "vllm.sh",
            "vllm::Worker",
            "sglang_router",
            "",
        ] {
            assert_eq!(engine(line), None, "{line}");
        }
        for cmdline in [
            &b""[..],
            b"\0\0\0\0",
            b"\xff\xfe",
            b"python3\0-\xff\0",
            b"python3\0\0\0",
        ] {
            assert_eq!(of_command_line(cmdline), None);
        }
    }
}
