// SPDX-License-Identifier: GPL-2.0-or-later

//! Engine of an agent, from the name of the agent.
//!
//! | created by | name | what it tells |
//! | --- | --- | --- |
//! | Dynamo's KVBM | `kvbm-worker-N`, N counted over the whole world of workers | the engine |
//! | SGLang's HiCache | `hicache_nixl_` and a UUID | the engine |
//! | TensorRT-LLM | `HOST_PID_RANDOM_N`, RANDOM 64 bits, all decimal | the engine; PID belongs to the PID namespace of its container, and HOST may be the name of a container |
//! | Megatron's refit | `refit-nixl-rank-N`, N the rank in a group that spans hosts and separate worlds | nothing: N is not a local rank |
//! | vLLM, SGLang, LMCache | a UUID | nothing |
//!
//! A name is stronger than a command line, because KVBM's agent is in the process of another engine, beside that
//! engine's agent.

/// Returns the engine that gives its agents such names.
#[must_use]
pub fn engine(name: &str) -> Option<&'static str> {
    if let Some(worker) = name.strip_prefix("kvbm-worker-") {
        return worker.parse::<u64>().is_ok().then_some("kvbm");
    }
    if name.starts_with("hicache_nixl_") {
        return Some("sglang");
    }
    is_tensorrt_llm(name)?.then_some("trtllm")
}

/// True if a name has the form of TensorRT-LLM's `genUniqueAgentName`. Its first versions had no random number. Those
/// names are not recognized, because other programs use them too.
fn is_tensorrt_llm(name: &str) -> Option<bool> {
    let mut parts = name.rsplitn(4, '_');
    let (count, random, pid) = (parts.next()?, parts.next()?, parts.next()?);
    let are_numbers = [count, random]
        .iter()
        .all(|part| part.parse::<u64>().is_ok());
    // Only one in 2^32 random numbers of 64 bits has 10 digits or fewer, but counters have.
    let is_random = random.len() > 10;
    Some(are_numbers && is_random && pid.parse::<u32>().is_ok() && !parts.next()?.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_name_of_one_engine_gives_that_engine() {
        for (name, expected) in [
            ("kvbm-worker-0", "kvbm"),
            ("kvbm-worker-17", "kvbm"),
            (
                "hicache_nixl_5a1e1f0c-30f5-4a34-8bb8-0f7c8a2d9a5e",
                "sglang",
            ),
            ("gpu-node-7_4242_13512874629471265023_0", "trtllm"),
            ("dgx_a_01.site_77_9007199254740993_12", "trtllm"),
        ] {
            assert_eq!(engine(name), Some(expected), "{name}");
        }
    }

    #[test]
    fn common_agent_name_has_no_engine() {
        for name in [
            "5a1e1f0c-30f5-4a34-8bb8-0f7c8a2d9a5e",
            "refit-nixl-rank-3",
            "sender_5a1e1f0c-30f5-4a34-8bb8-0f7c8a2d9a5e",
            "kvbm-worker-",
            "kvbm-worker-a",
            "my-kvbm-worker-0",
            "vllm",
            "node_4242_0",
            "node_1_2_3",
            "_4242_13512874629471265023_0",
            "4242_13512874629471265023_0",
            "node_4242_99999999999999999999_0",
            "node_99999999999_13512874629471265023_0",
            "node_4242_13512874629471265023_x",
            "",
        ] {
            assert_eq!(engine(name), None, "{name}");
        }
    }
}
