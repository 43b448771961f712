// SPDX-License-Identifier: GPL-2.0-or-later

//! Callbacks of libpcp_pmda. One of the three modules with unsafe code.
//!
//! Each callback converts its pointers first and then calls [`Server`], which is safe code. A panic becomes the status
//! PM_ERR_BOTCH of this one request and never unwinds into C.
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

/// Registers the metric table and the callbacks. Some callbacks replace functions of the library.
///
/// # Errors
/// If the library rejects them. It has logged the reason.
pub fn init(pmda: &mut Pmda) -> Result<(), Status> {
    pmda.init(|interface| {
        // SAFETY: the interface lives forever, and nothing else refers to it during this statement.
        let table = unsafe { &mut *interface };
        table.version.seven.fetch = Some(fetch);
        table.version.seven.instance = Some(instance);
        table.version.seven.label = Some(label);
        table.version.seven.store = Some(store);
        table.version.seven.attribute = Some(attribute);
        // SAFETY: the interface lives forever; the function has the right type and lives forever.
        unsafe { sys::pmdaSetResultCallBack(interface, Some(result_sent)) };
        // SAFETY: as above.
        unsafe { sys::pmdaSetLabelCallBack(interface, Some(label_instance)) };
        // SAFETY: as above.
        unsafe { sys::pmdaSetEndContextCallBack(interface, Some(end_context)) };
    })
}

/// Runs the body of a callback. Returns its result, or the status PM_ERR_BOTCH after a panic.
fn catch_panic<T>(body: impl FnOnce() -> T) -> Result<T, c_int> {
    // The panic hook has logged the panic.
    catch_unwind(AssertUnwindSafe(body)).map_err(|_| sys::PM_ERR_BOTCH)
}

/// Drains the rings before an answer, so that its values are fresh. After a panic the request is answered with the
/// present values: pmlogger ends on an error for a known instance domain.
fn refresh(run: fn(&mut Server)) {
    let _ = catch_panic(|| with_server(run));
}

thread_local! {
    /// The result of the last fetch. libpcp_pmda reads it until the next fetch.
    static ANSWER: RefCell<Answer> = RefCell::default();
}

/// Replaces pmdaFetch(3). That function also reports changed names and labels to pmcd. Names never change here. Labels
/// of an agent do, but for that report pmlogger(1) writes labels of the context only.
unsafe extern "C" fn fetch(
    count: c_int,
    pmids: *mut sys::pmID,
    result: *mut *mut sys::nixl_pmda_result,
    ext: *mut sys::pmdaExt,
) -> c_int {
    refresh(Server::refresh);
    let metrics = match usize::try_from(count) {
        // SAFETY: the library passes `count` metrics, which are valid during the call.
        Ok(count @ 1..) => unsafe { std::slice::from_raw_parts(pmids, count) },
        _ => &[],
    };
    // SAFETY: the library passes its own state.
    let client = unsafe { (*ext).e_context };
    // SAFETY: as above.
    let profile = unsafe { (*ext).e_prof };
    // SAFETY: the library keeps the last profile that pmcd sent until it has received another.
    let profile = unsafe { read_profile(profile) };
    let answer = catch_panic(|| {
        ANSWER.with_borrow_mut(|answer| {
            with_server(|server| server.answer(client, metrics, &profile, answer))?;
            Some(answer.finish())
        })
    });
    match answer {
        Ok(Some(answer)) => {
            // SAFETY: `result` points to a pointer of the library.
            unsafe { *result = answer };
            0
        }
        Ok(None) => sys::PM_ERR_AGAIN,
        Err(status) => status,
    }
}

/// Called after a result was sent. The memory is kept for the next result, unless there is too much of it.
unsafe extern "C" fn result_sent(_result: *mut sys::nixl_pmda_result) {
    let _ = catch_panic(|| ANSWER.with_borrow_mut(Answer::shrink));
}

/// Copies the profile of a client: the instances that it requests.
///
/// `profile` must be null, or valid during the call.
unsafe fn read_profile(profile: *const sys::pmProfile) -> Profile {
    let mut requested = Profile::default();
    if profile.is_null() {
        return requested;
    }
    // SAFETY: the caller guarantees that it is valid.
    let profile = unsafe { &*profile };
    requested.excludes_others = profile.state == sys::PM_PROFILE_EXCLUDE;
    for at in 0..usize::try_from(profile.profile_len).unwrap_or(0) {
        // SAFETY: the profile has `profile_len` instance domains.
        let indom = unsafe { profile.profile.add(at) };
        // SAFETY: as above.
        let indom = unsafe { &*indom };
        let mut exceptions = Vec::new();
        if let Ok(count @ 1..) = usize::try_from(indom.instances_len) {
            // SAFETY: the domain has `instances_len` instances.
            exceptions.extend(unsafe { std::slice::from_raw_parts(indom.instances, count) });
        }
        exceptions.sort_unstable();
        requested.indoms.push(IndomProfile {
            indom: indom.indom,
            excludes_others: indom.state == sys::PM_PROFILE_EXCLUDE,
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
    // This also runs while another pmdanixl drains and there are no instances: pmlogger ends on an error here.
    refresh(Server::refresh_instances);
    // SAFETY: the arguments come from the library unchanged.
    unsafe { sys::pmdaInstance(indom, inst, name, result, ext) }
}

unsafe extern "C" fn label(
    ident: c_int,
    kind: c_int,
    labels: *mut *mut sys::pmLabelSet,
    ext: *mut sys::pmdaExt,
) -> c_int {
    refresh(Server::refresh_instances);
    // SAFETY: the arguments come from the library unchanged. It calls label_instance, and nothing is borrowed here.
    unsafe { sys::pmdaLabel(ident, kind, labels, ext) }
}

/// Adds the labels of an instance. Returns the number of labels, or an error of pmdaAddLabels(3).
unsafe extern "C" fn label_instance(
    indom: sys::pmInDom,
    inst: c_uint,
    labels: *mut *mut sys::pmLabelSet,
) -> c_int {
    let json = catch_panic(|| {
        let json = with_server(|server| server.labels(indom, inst)).flatten()?;
        CString::new(json).ok()
    });
    match json {
        // SAFETY: `labels` points to a label set of the library. The text is only an argument of "%s", and is copied.
        Ok(Some(json)) => unsafe { sys::pmdaAddLabels(labels, c"%s".as_ptr(), json.as_ptr()) },
        Ok(None) => 0,
        Err(status) => status,
    }
}

unsafe extern "C" fn store(result: *mut sys::nixl_pmda_result, ext: *mut sys::pmdaExt) -> c_int {
    // SAFETY: the library passes the decoded request, which is valid during the call.
    let count = unsafe { (*result).numpmid };
    // SAFETY: as above; the array of value sets is the last field of the struct.
    let sets = unsafe { &raw const (*result).vset }.cast::<*mut sys::pmValueSet>();
    let mut requests = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: there are `count` of them.
        let set = unsafe { sets.add(at) };
        // SAFETY: each points to a value set that is valid during the call.
        let set = unsafe { *set };
        // SAFETY: as above; only fields are read, because a set without values is shorter than its type.
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
    // pmdaGetContext(3) would return the client of the last request that a function of the library answered.
    // SAFETY: the library passes its own state.
    let context = unsafe { (*ext).e_context };
    match catch_panic(|| with_server(|server| server.pmstore(context, &requests))) {
        Ok(Some(Ok(()))) => 0,
        Ok(Some(Err(error))) => error.0,
        Ok(None) => sys::PM_ERR_AGAIN,
        Err(status) => status,
    }
}

/// Returns the first value of a set, which must be valid and have a value.
///
/// libpcp passes all 32-bit numbers in place. A value in a block has another type, and pmExtractValue(3) does not
/// convert it.
unsafe fn u32_value(set: *const sys::pmValueSet) -> Result<u32, PmStoreError> {
    // SAFETY: the caller guarantees that the set is valid.
    if unsafe { (*set).valfmt } != sys::PM_VAL_INSITU {
        return Err(PmStoreError::TYPE);
    }
    // SAFETY: the caller guarantees that the set has a value.
    let value = unsafe { (*set).vlist[0].value };
    // SAFETY: the format says which field of the union it is.
    let value = unsafe { value.lval };
    // The metrics are unsigned. libpcp decodes them into a signed field.
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
    let uid = value.to_str().ok().and_then(|uid| uid.parse().ok());
    let noted = catch_panic(|| with_server(|server| server.set_user(context, uid)));
    noted.map_or_else(|status| status, |_| 0)
}

unsafe extern "C" fn end_context(context: c_int) {
    let _ = catch_panic(|| with_server(|server| server.end_client(context)));
}
