//! Models of a channel: one value sent, by tries, with the ends of both sides.

use super::*;
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
fn loom_a_value_sent_while_the_receiver_goes_is_dropped_once() {
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
