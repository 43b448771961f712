//! The functions that libpcp_pmda calls: one of the three modules that hold unsafe code.
//!
//! Pointers end in the first lines of each; what is done is in [`Server`], in safe code. A panic becomes the status of this
//! one request and never unwinds into C.
#![allow(unsafe_code)]

use super::answer::Answer;
use super::current::with_server;
use super::ffi::{Pmda, Status};
use super::profile::{IndomProfile, Profile};
use super::server::{PmStoreError, PmStoreRequest, Server};
use super::sys;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Registers the callbacks, some of them in place of the library's own, and the metric table.
///
/// # Errors
/// The library does not take them; it has said why in the log.
pub fn init(pmda: &mut Pmda) -> Result<(), Status> {
    pmda.init(|interface| {
        // SAFETY: the interface lives for ever, and nothing else refers to it during this statement.
        let table = unsafe { &mut *interface };
        table.version.seven.fetch = Some(fetch);
        table.version.seven.instance = Some(instance);
        table.version.seven.label = Some(label);
        table.version.seven.store = Some(store);
        table.version.seven.attribute = Some(attribute);
        // SAFETY: the interface lives for ever; plain functions of the right types, which live for ever.
        unsafe { sys::pmdaSetResultCallBack(interface, Some(result_sent)) };
        // SAFETY: as above.
        unsafe { sys::pmdaSetLabelCallBack(interface, Some(label_instance)) };
        // SAFETY: as above.
        unsafe { sys::pmdaSetEndContextCallBack(interface, Some(end_context)) };
    })
}

/// Runs the body of a callback.
fn catch_panic(body: impl FnOnce() -> c_int) -> c_int {
    // The panic hook has logged it.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(sys::PM_ERR_BOTCH)
}

/// Drains the rings, so that the answer that follows is fresh. Where that fails, it is answered from what is there: the
/// cache and the totals are whole, and pmlogger ends itself over an error for a known instance domain.
fn refresh(refresh: fn(&mut Server)) {
    catch_panic(|| with_server(refresh).map_or(0, |()| 0));
}

thread_local! {
    /// The answer that was given last, until the next one.
    static ANSWER: RefCell<Answer> = RefCell::default();
}

/// In place of pmdaFetch(3), which would also tell pmcd of flags for changed names and labels: this PMDA sets none of these.
unsafe extern "C" fn fetch(
    count: c_int,
    pmids: *mut sys::pmID,
    result: *mut *mut sys::nixl_pmda_result,
    ext: *mut sys::pmdaExt,
) -> c_int {
    refresh(Server::refresh);
    let metrics = match usize::try_from(count) {
        // SAFETY: the library passes `count` metrics, which stay there during the call.
        Ok(count @ 1..) => unsafe { std::slice::from_raw_parts(pmids, count) },
        _ => &[],
    };
    // SAFETY: the library passes its own state.
    let profile = unsafe { (*ext).e_prof };
    // SAFETY: the library keeps the last profile that pmcd sent, until the next one has taken its place.
    let profile = unsafe { read_profile(profile) };
    catch_panic(|| {
        let answer = ANSWER.with_borrow_mut(|answer| {
            with_server(|server| server.answer(metrics, &profile, answer))?;
            Some(answer.finish())
        });
        let Some(answer) = answer else {
            return sys::PM_ERR_AGAIN;
        };
        // SAFETY: the library passes a place for the pointer.
        unsafe { *result = answer };
        0
    })
}

/// Called when a result was sent. Its memory is for the next one.
unsafe extern "C" fn result_sent(_result: *mut sys::nixl_pmda_result) {
    catch_panic(|| {
        ANSWER.with_borrow_mut(Answer::shrink);
        0
    });
}

/// Which instances a client asks for. The caller's profile is null or stays there during the call.
unsafe fn read_profile(profile: *const sys::pmProfile) -> Profile {
    let mut requested = Profile::default();
    if profile.is_null() {
        return requested;
    }
    // SAFETY: the caller's is valid.
    let profile = unsafe { &*profile };
    requested.has_others = profile.state == sys::PM_PROFILE_INCLUDE;
    for at in 0..usize::try_from(profile.profile_len).unwrap_or(0) {
        // SAFETY: the profile has `profile_len` domains.
        let indom = unsafe { profile.profile.add(at) };
        // SAFETY: as above.
        let indom = unsafe { &*indom };
        let mut exceptions = Vec::new();
        if let Ok(count @ 1..) = usize::try_from(indom.instances_len) {
            // SAFETY: the domain has so many instances.
            exceptions.extend(unsafe { std::slice::from_raw_parts(indom.instances, count) });
        }
        exceptions.sort_unstable();
        requested.indoms.push(IndomProfile {
            indom: indom.indom,
            has_others: indom.state == sys::PM_PROFILE_INCLUDE,
            exceptions,
        });
    }
    requested
}

unsafe extern "C" fn instance(
    indom: sys::pmInDom,
    inst: c_int,
    name: *mut c_char,
    result: *mut *mut sys::pmInResult,
    ext: *mut sys::pmdaExt,
) -> c_int {
    // Also while another pmdanixl drains, when there are none: pmlogger ends itself over an error here.
    refresh(Server::refresh_instances);
    // SAFETY: the arguments are the library's own, handed on.
    unsafe { sys::pmdaInstance(indom, inst, name, result, ext) }
}

unsafe extern "C" fn label(
    ident: c_int,
    kind: c_int,
    labels: *mut *mut sys::pmLabelSet,
    ext: *mut sys::pmdaExt,
) -> c_int {
    refresh(Server::refresh_instances);
    // SAFETY: the arguments are the library's own, handed on; it calls label_instance, while nothing is borrowed here.
    unsafe { sys::pmdaLabel(ident, kind, labels, ext) }
}

/// Adds the labels of an instance. The library wants the number of labels back, which the last call to it gives.
unsafe extern "C" fn label_instance(
    indom: sys::pmInDom,
    inst: c_uint,
    labels: *mut *mut sys::pmLabelSet,
) -> c_int {
    catch_panic(|| {
        let Some(json) = with_server(|server| server.labels(indom, inst)).flatten() else {
            return 0;
        };
        let Ok(json) = CString::new(json) else {
            return 0;
        };
        // SAFETY: the library passes a place for a label set of its own; the text holds no format but "%s", and is copied.
        unsafe { sys::pmdaAddLabels(labels, c"%s".as_ptr(), json.as_ptr()) }
    })
}

unsafe extern "C" fn store(result: *mut sys::nixl_pmda_result, ext: *mut sys::pmdaExt) -> c_int {
    // SAFETY: pmcd's request, decoded by the library: valid during the call.
    let count = unsafe { (*result).numpmid };
    // SAFETY: as above; the value sets stand at the end of the struct.
    let sets = unsafe { &raw const (*result).vset }.cast::<*mut sys::pmValueSet>();
    let mut requests = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: there are `count` of them.
        let set = unsafe { sets.add(at) };
        // SAFETY: each points to a value set that is valid during the call.
        let set = unsafe { *set };
        // SAFETY: as above; only fields are read, since one without values is shorter than its type.
        let pmid = unsafe { (*set).pmid };
        // SAFETY: as above.
        let values = unsafe { (*set).numval };
        let value = if values == 1 {
            // SAFETY: as above, and there is one value.
            unsafe { u32_value(set) }
        } else {
            Err(PmStoreError::NOT_ONE)
        };
        requests.push(PmStoreRequest { pmid, value });
    }
    // The sender of this request. pmdaGetContext(3) tells who sent the last one that the library's own functions answered.
    // SAFETY: the library passes its own state.
    let context = unsafe { (*ext).e_context };
    catch_panic(|| {
        let stored = with_server(|server| server.pmstore(context, &requests));
        match stored {
            Some(Ok(())) => 0,
            Some(Err(error)) => error.0,
            None => sys::PM_ERR_AGAIN,
        }
    })
}

/// The number that a set has as its first value, which must be there. What stands elsewhere is of another type: libpcp puts
/// all numbers of 32 bits in place, takes none from elsewhere (pmExtractValue(3)), and does not say in which order their bytes
/// would be there.
unsafe fn u32_value(set: *const sys::pmValueSet) -> Result<u32, PmStoreError> {
    // SAFETY: the caller's set is valid.
    if unsafe { (*set).valfmt } != sys::PM_VAL_INSITU {
        return Err(PmStoreError::TYPE);
    }
    // SAFETY: the caller's set has a value.
    let value = unsafe { (*set).vlist[0].value };
    // SAFETY: the format says which field of the union it is.
    let value = unsafe { value.lval };
    // The type of the metric has no sign.
    Ok(u32::from_ne_bytes(value.to_ne_bytes()))
}

unsafe extern "C" fn attribute(
    context: c_int,
    attribute: c_int,
    value: *const c_char,
    _length: c_int,
    _ext: *mut sys::pmdaExt,
) -> c_int {
    if value.is_null() || attribute != sys::PMDA_ATTR_USERID {
        return 0;
    }
    // SAFETY: the library passes a string that ends in NUL, valid during the call.
    let value = unsafe { CStr::from_ptr(value) };
    catch_panic(|| {
        let uid = value.to_str().ok().and_then(|uid| uid.parse().ok());
        with_server(|server| server.set_user(context, uid));
        0
    })
}

unsafe extern "C" fn end_context(context: c_int) {
    catch_panic(|| with_server(|server| server.set_user(context, None)).map_or(0, |()| 0));
}
