//! What the ancestors of a process tell of it: its Slurm job, and the role and port of the server that it is part of.
//!
//! A worker that has given itself a title has overwritten its command line and environment. The process that the server was
//! started as mostly has not. All ranks share the three facts; LOCAL_RANK and CUDA_VISIBLE_DEVICES of a parent are not a worker's.

use super::command::CommandLine;
use super::server::Server;
use super::{Engine, Sources};
use crate::producer::ancestors::Ancestors;
use crate::producer::writer::Writer;

/// What ancestors have told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inherited {
    pub slurm_job_id: Option<String>,
    pub server: Option<Server>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub job: bool,
    pub server: bool,
    /// The engine of the process; a server of another one is not its server.
    pub engine: Option<Engine>,
}

/// The nearest ancestors of the same user and PID namespace that tell what is asked for. To read one of them can block, so
/// `may_read` is called before, and says whether it is to be read. Where one is not, the ancestors beyond are not asked either.
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
        // Meanwhile it may have ended, and another process have its id.
        if !ancestor.is_running() {
            break;
        }
        let Some(line) = CommandLine::parse(&cmdline) else {
            break;
        };
        if asked.job && !environ.is_overwritten(line.is_title()) {
            told.slurm_job_id.clone_from(&environ.slurm_job_id);
            asked.job = false;
        }
        if let Some(server) = Server::of(&line, &environ).filter(|_| asked.server) {
            let is_same = asked.engine.is_none() || asked.engine == Engine::of(&line);
            told.server = is_same.then_some(server);
            asked.server = false;
        }
    }
    told
}
