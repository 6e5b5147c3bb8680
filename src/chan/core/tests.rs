//! Models of a channel that carries one value: a sender, and a receiver that tries, waits or gives
//! up.

use super::*;
use crate::park::queue::Operation;
use loom::thread;
use std::sync::Arc;

struct Counted(loom::sync::Arc<loom::sync::atomic::AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, loom::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn loom_a_oneshot_value_is_received_or_dropped_once() {
    loom::model(|| {
        let drops = loom::sync::Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let channel = Arc::new(Channel::new(Some(1)));
        let (other, value) = (channel.clone(), Counted(drops.clone()));
        let sender = thread::spawn(move || {
            let sent = other.try_send(value).is_ok();
            other.drop_sender();
            sent
        });
        let mut received = usize::from(channel.try_receive().is_ok());
        let sent = sender.join().unwrap();
        received += usize::from(channel.try_receive().is_ok());
        assert_eq!(channel.try_receive().err(), Some(TryRecvError::Closed));
        channel.drop_receiver();
        assert!(sent);
        assert_eq!(received, 1);
        assert_eq!(drops.load(loom::sync::atomic::Ordering::SeqCst), 1);
    });
}

#[test]
fn loom_a_value_sent_while_the_receiver_is_dropped_is_dropped_once() {
    loom::model(|| {
        let drops = loom::sync::Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let channel = Arc::new(Channel::new(Some(1)));
        let (other, value) = (channel.clone(), Counted(drops.clone()));
        let sender = thread::spawn(move || {
            drop(other.try_send(value));
            other.drop_sender();
        });
        channel.drop_receiver();
        sender.join().unwrap();
        assert_eq!(drops.load(loom::sync::atomic::Ordering::SeqCst), 1);
    });
}

/// `Channel::receive` without the park: a patient receiver spins, an impatient one withdraws.
fn receive(channel: &Channel<Counted>, patient: bool) -> Result<Counted, RecvTimeoutError> {
    let mut value = MaybeUninit::<Counted>::uninit();
    let operation = Operation::of_model();
    let entry = Entry::only(&operation, value.as_mut_ptr().cast());
    let mut state = channel.state.lock();
    // SAFETY: the slot is empty.
    match unsafe { state.receive(value.as_mut_ptr()) } {
        Attempt::Done(taken) => {
            state.finish([taken]);
            // SAFETY: moved there.
            return Ok(unsafe { value.assume_init() });
        }
        Attempt::Closed => return Err(RecvTimeoutError::Closed),
        Attempt::Wait => {}
    }
    // SAFETY: the entry stays here until it is notified or withdrawn.
    unsafe { state.receiving.push(&entry) };
    drop(state);
    // SAFETY: the entry was put into this queue.
    if !patient && unsafe { channel.state.lock().receiving.remove(&entry) } {
        return Err(RecvTimeoutError::Timeout);
    }
    while !operation.was_notified() {
        thread::yield_now();
    }
    match operation.won().how {
        // SAFETY: the sender that notified this operation moved a value there.
        How::Done => Ok(unsafe { value.assume_init() }),
        How::Over => Err(RecvTimeoutError::Closed),
    }
}

/// Runs a one-shot channel in the model and checks that its value is dropped once.
///
/// `receiver` is one side. The other side sends the value or drops its handle.
fn oneshot(sends: bool, receiver: impl Fn(&Channel<Counted>) -> usize + Send + Sync + 'static) {
    let receiver = Arc::new(receiver);
    loom::model(move || {
        let drops = loom::sync::Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let channel = Arc::new(Channel::new(Some(1)));
        let (other, value) = (channel.clone(), Counted(drops.clone()));
        let sender = thread::spawn(move || {
            let sent = sends && other.try_send(value).is_ok();
            other.drop_sender();
            sent
        });
        let received = receiver(&channel);
        channel.drop_receiver();
        let sent = sender.join().unwrap();
        assert!(received <= usize::from(sent));
        assert_eq!(drops.load(loom::sync::atomic::Ordering::SeqCst), 1);
    });
}

#[test]
fn loom_a_waiting_receiver_of_a_oneshot_gets_its_value() {
    oneshot(true, |channel| {
        assert!(receive(channel, true).is_ok());
        1
    });
}

#[test]
fn loom_a_waiting_receiver_of_a_oneshot_gets_an_error_if_the_sender_is_dropped() {
    oneshot(false, |channel| {
        let received = receive(channel, true);
        assert_eq!(received.err(), Some(RecvTimeoutError::Closed));
        0
    });
}

#[test]
fn loom_a_oneshot_receiver_that_gives_up_gets_the_value_or_leaves_it() {
    oneshot(true, |channel| match receive(channel, false) {
        Ok(value) => {
            drop(value);
            1
        }
        Err(RecvTimeoutError::Timeout) => 0,
        Err(RecvTimeoutError::Closed) => panic!("a value was sent before"),
    });
}
