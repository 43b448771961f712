//! What the ancestors of a process tell of it: its Slurm job, and the engine, the role and the port of its server.
//!
//! A worker that has given itself a title has overwritten its command line and its environment. The process that the server was
//! started as has mostly not. All ranks share these facts. LOCAL_RANK and CUDA_VISIBLE_DEVICES of a parent are not a worker's.

use super::command::CommandLine;
use super::environ::Environ;
use super::server::Server;
use super::{Engine, Sources};
use crate::producer::ancestors::Ancestors;
use crate::producer::writer::Writer;

/// Facts that ancestors have told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inherited {
    pub slurm_job_id: Option<String>,
    pub engine: Option<Engine>,
    pub server: Option<Server>,
}

/// Facts that are asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub job: bool,
    pub server: bool,
    /// The engine of the process, if its own command line tells. A server of another engine is not its server.
    pub engine: Option<Engine>,
}

/// Asks the ancestors of the same user and PID namespace, the nearest first, until all is told.
///
/// To read a process can block: `may_read` is called before and returns true if the process is to be read. The ancestors beyond
/// one that is not to be read are not asked.
pub(super) fn ask(
    process: Writer,
    mut asked: Asked,
    may_read: &mut dyn FnMut(Writer) -> bool,
) -> Inherited {
    let mut told = Inherited::default();
    for ancestor in Ancestors::of(process).into_iter().flatten() {
        if !(asked.job || asked.server) || !may_read(ancestor) {
            break;
        }
        let Sources { cmdline, environ } = Sources::read(&format!("/proc/{}", ancestor.pid));
        // The process may have ended meanwhile, and its id may be another's.
        if !ancestor.is_running() {
            break;
        }
        let Some(line) = CommandLine::parse(&cmdline) else {
            break;
        };
        told.note(&mut asked, &line, environ);
    }
    told
}

impl Inherited {
    /// Takes what an ancestor tells; `None`: its environment cannot be read.
    fn note(&mut self, asked: &mut Asked, line: &CommandLine, environ: Option<Environ>) {
        let environ = environ.filter(|environ| !environ.is_overwritten);
        if let Some(environ) = environ.as_ref().filter(|_| asked.job) {
            self.slurm_job_id.clone_from(&environ.slurm_job_id);
            asked.job = false;
        }
        let server = Server::of(line, &environ.unwrap_or_default());
        if let Some(server) = server.filter(|_| asked.server) {
            let engine = Engine::of(line);
            if asked.engine.is_none() || asked.engine == engine {
                (self.server, self.engine) = (Some(server), engine);
            }
            asked.server = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producer::facts::Role;

    const SERVER: &[u8] = b"vllm\0serve\0m\0--port\x008100\0";

    /// The facts of ancestors, each with its command line and environment, the nearest first.
    fn told(engine: Option<Engine>, ancestors: &[(&[u8], Option<&[u8]>)]) -> Inherited {
        let (mut told, mut asked) = (
            Inherited::default(),
            Asked {
                job: true,
                server: true,
                engine,
            },
        );
        for (cmdline, environ) in ancestors {
            let line = CommandLine::parse(cmdline).expect("words");
            let environ = environ.map(|text| Environ::read(text).expect("memory can be read"));
            told.note(&mut asked, &line, environ);
        }
        told
    }

    #[test]
    fn environment_that_cannot_be_read_leaves_the_job_to_the_next() {
        let job = &b"SLURM_JOB_ID=4711\0"[..];
        for hidden in [None, Some(&b"\0\0\0\0"[..])] {
            let told = told(None, &[(SERVER, hidden), (b"srun\0", Some(job))]);
            assert_eq!(told.slurm_job_id.as_deref(), Some("4711"), "{hidden:?}");
        }
        // One that can be read and has none tells that there is none.
        let told = told(None, &[(SERVER, Some(b"A=b\0")), (b"srun\0", Some(job))]);
        assert_eq!(told.slurm_job_id, None);
    }

    #[test]
    fn engine_comes_with_its_server() {
        let core = &b"prefill-a::EngineCore\0\0\0"[..];
        let lmcache = &b"LMCACHE_PD_ROLE=sender\0"[..];
        let found = told(None, &[(core, Some(b"\0\0")), (SERVER, Some(lmcache))]);
        assert_eq!(found.engine, Some(Engine::Vllm));
        let server = Server {
            role: Some(Role::Prefill),
            port: Some(8100),
        };
        assert_eq!(found.server, Some(server));
        let other = told(Some(Engine::Sglang), &[(SERVER, None)]);
        assert_eq!((other.engine, other.server), (None, None));
    }
}
