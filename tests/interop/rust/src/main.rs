//! Sends or consumes with the crate `rocketmq-client-rust`: interop-rust '{"action":"send"|"consume",...}', see
//! ../../other_clients.py.

use std::error::Error;
use std::io::{Write, sink, stdin, stdout};
use std::sync::Arc;

use rocketmq_client_rust::{
    ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext, ConsumeOrderlyStatus, DefaultMQProducer, DefaultMQPushConsumer,
    MQPushConsumer,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::MessageConst;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_queue::MessageQueue;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::result::SendStatus;
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_protocol::protocol::heartbeat::message_model::MessageModel;
use rocketmq_runtime::RuntimeOwner;
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let options: Value = serde_json::from_str(&std::env::args().nth(1).ok_or("no options")?)?;
    let owner = RuntimeOwner::new()?;
    let telemetry = TelemetryRuntimeGuard::noop();
    let context = owner.root_context().component("interop");
    let runtime =
        ClientRuntime::try_new(context, ClientRuntimeConfig::default(), telemetry.handle())?;
    match text(&options, "action") {
        "send" => owner.block_on(send(runtime.clone(), &options))?,
        "consume" => {
            let mut consumer = owner.block_on(start_consumer(runtime.clone(), &options))?;
            std::io::copy(&mut stdin(), &mut sink())?;
            owner.block_on(consumer.shutdown());
        }
        other => return Err(format!("unknown action {other}").into()),
    }
    owner.block_on(runtime.shutdown());
    owner.shutdown_runtime_blocking()?;
    Ok(())
}

async fn send(runtime: Arc<ClientRuntime>, options: &Value) -> Outcome<()> {
    let mut producer = DefaultMQProducer::builder(runtime)
        .producer_group(text(options, "group"))
        .name_server_addr(text(options, "namesrv"))
        .build();
    producer.start().await?;
    for each in options["messages"].as_array().ok_or("no messages")? {
        let body = text(each, "body");
        let message = Message::builder()
            .topic(text(options, "topic"))
            .tags(text(each, "tag"))
            .key(text(each, "key"))
            .body_slice(body.as_bytes())
            .build()?;
        let sent = match each["shard"].as_str() {
            Some(shard) => {
                producer
                    .send_with_selector(message, queue_of, shard.to_owned())
                    .await?
            }
            None => producer.send(message).await?,
        };
        let sent = sent.ok_or("no result")?;
        if sent.send_status != SendStatus::SendOk {
            return Err(format!("{sent:?}").into());
        }
        let queue = sent.message_queue.ok_or("no queue")?.queue_id();
        print(json!({"body": body, "queue": queue, "offset": sent.queue_offset}));
    }
    producer.shutdown().await;
    Ok(())
}

/// The queue of the messages with one sharding key.
fn queue_of(queues: &[MessageQueue], _message: &Message, shard: &String) -> Option<MessageQueue> {
    let sum: usize = shard.bytes().map(usize::from).sum();
    queues.get(sum % queues.len()).cloned()
}

async fn start_consumer(
    runtime: Arc<ClientRuntime>,
    options: &Value,
) -> Outcome<DefaultMQPushConsumer> {
    let broadcast = options["broadcast"].as_bool() == Some(true);
    let mut consumer = DefaultMQPushConsumer::builder(runtime)
        .consumer_group(text(options, "group"))
        .name_server_addr(text(options, "namesrv"))
        .message_model(if broadcast {
            MessageModel::Broadcasting
        } else {
            MessageModel::Clustering
        })
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .build();
    consumer
        .subscribe(text(options, "topic"), text(options, "tags"))
        .await?;
    let failures = options["failures"].as_i64().unwrap_or(0);
    if options["orderly"].as_bool() == Some(true) {
        consumer.register_message_listener_orderly(
            move |messages: &[&MessageExt], _: &mut ConsumeOrderlyContext| {
                let failed = messages
                    .iter()
                    .filter(|message| !handled(message, failures))
                    .count()
                    > 0;
                Ok(if failed {
                    ConsumeOrderlyStatus::SuspendCurrentQueueAMoment
                } else {
                    ConsumeOrderlyStatus::Success
                })
            },
        );
    } else {
        consumer.register_message_listener_concurrently(
            move |messages: &[&MessageExt], _: &ConsumeConcurrentlyContext| {
                let failed = messages
                    .iter()
                    .filter(|message| !handled(message, failures))
                    .count()
                    > 0;
                Ok(if failed {
                    ConsumeConcurrentlyStatus::ReconsumeLater
                } else {
                    ConsumeConcurrentlyStatus::ConsumeSuccess
                })
            },
        );
    }
    consumer.start().await?;
    Ok(consumer)
}

/// Prints one message; false if its delivery is to fail.
fn handled(message: &MessageExt, failures: i64) -> bool {
    let body = message.body().unwrap_or_default();
    print(json!({
        "body": String::from_utf8_lossy(&body),
        "tag": message.message_inner().property(MessageConst::PROPERTY_TAGS),
        "key": message.message_inner().property(MessageConst::PROPERTY_KEYS),
        "queue": message.queue_id(),
        "offset": message.queue_offset(),
        "times": message.reconsume_times(),
    }));
    i64::from(message.reconsume_times()) >= failures
}

fn text<'a>(fields: &'a Value, name: &str) -> &'a str {
    fields[name].as_str().unwrap_or_default()
}

fn print(fields: Value) {
    writeln!(stdout().lock(), "{fields}").expect("stdout is open");
}
