// What MQTT.js sees of a broker: runs one scenario and prints the outcome as one line of JSON.
//   node mqttjs.mjs FOLDER URL VERSION    FOLDER has node_modules/mqtt; VERSION is 4 (3.1.1) or 5.
import { createRequire } from "node:module";
import { join } from "node:path";

const [folder, url, versionText] = process.argv.slice(2);
const mqtt = createRequire(join(folder, "here.js"))("mqtt");
const version = Number(versionText);
const name = `mqttjs-${version}-${new URL(url).protocol.slice(0, -1)}`;
const v5 = version === 5;

function open(clientId, options = {}) {
  return mqtt.connectAsync(url, {
    clientId: `${name}-${clientId}`, protocolVersion: version, reconnectPeriod: 0, ...options,
  });
}

function collect(client) {
  const got = [];
  let check = () => {};
  client.on("message", (topic, payload, packet) => {
    got.push({
      topic, payload: payload.toString(), qos: packet.qos, retain: packet.retain, properties: packet.properties ?? {},
    });
    check();
  });
  return (count) => new Promise((resolve) => {
    check = () => {
      if (got.length < count) return;
      check = () => {};
      resolve(got.splice(0, count));
    };
    check();
  });
}

const outcome = {};

// All QoS, retained, and a large message.
const reader = await open("reader");
const take = collect(reader);
const writer = await open("writer");
await writer.publishAsync(`${name}/kept`, "kept", { qos: 1, retain: true });
const granted = await reader.subscribeAsync(`${name}/#`, { qos: 2 });
outcome.granted = granted.map((one) => one.qos);
outcome.retained = await take(1);
for (const qos of [0, 1, 2]) await writer.publishAsync(`${name}/${qos}`, `${qos}`, { qos });
outcome.live = await take(3);
await writer.publishAsync(`${name}/large`, "x".repeat(300000), { qos: 2 });
outcome.large = (await take(1))[0].payload.length;
await writer.publishAsync(`${name}/kept`, "", { qos: 1, retain: true });
await take(1);

// A will.
const doomed = await open("doomed", { will: { topic: `${name}/will`, payload: Buffer.from("gone"), qos: 1 } });
doomed.stream.destroy();
outcome.will = await take(1);

// A session that stays.
const kept = v5 ? { clean: false, properties: { sessionExpiryInterval: 60 } } : { clean: false };
const away = await open("away", kept);
await away.subscribeAsync(`${name}-session`, { qos: 2 });
await away.endAsync();
for (const number of [0, 1, 2, 3]) {
  await writer.publishAsync(`${name}-session`, `${number}`, { qos: 1 + (number % 2) });
}
const back = mqtt.connect(url, { clientId: `${name}-away`, protocolVersion: version, reconnectPeriod: 0, ...kept });
const takeBack = collect(back);
outcome.present = await new Promise((resolve) => back.on("connect", (connack) => resolve(connack.sessionPresent)));
outcome.session = (await takeBack(4)).map((one) => one.payload).sort();

// A shared subscription.
const shared = [];
const members = await Promise.all(["a", "b"].map((one) => open(`member-${one}`)));
let all;
const complete = new Promise((resolve) => { all = resolve; });
for (const [index, member] of members.entries()) {
  member.on("message", (_topic, payload) => {
    shared.push([index, Number(payload.toString())]);
    if (shared.length === 20) all();
  });
  await member.subscribeAsync(`$share/group/${name}-work`, { qos: 1 });
}
for (let number = 0; number < 20; number++) await writer.publishAsync(`${name}-work`, `${number}`, { qos: 1 });
await complete;
outcome.shared = shared.map(([, number]) => number).sort((a, b) => a - b);
outcome.members = new Set(shared.map(([index]) => index)).size;

// Properties.
if (v5) {
  const properties = {
    userProperties: { a: ["1", "2"], b: "3" }, responseTopic: `${name}-answer`, correlationData: Buffer.from("42"),
    contentType: "text/plain", messageExpiryInterval: 100, payloadFormatIndicator: true,
  };
  await writer.publishAsync(`${name}/properties`, "x", { qos: 1, properties });
  const [message] = await take(1);
  const seen = { ...message.properties };
  seen.correlationData = seen.correlationData.toString();
  outcome.properties = seen;
  const aliasing = await open("aliasing", { autoUseTopicAlias: true, autoAssignTopicAlias: true });
  for (const payload of ["1", "2", "3"]) await aliasing.publishAsync(`${name}/alias`, payload, { qos: 1 });
  outcome.aliased = (await take(3)).map((one) => [one.topic, one.payload]);
  await aliasing.endAsync();
}

for (const client of [reader, writer, back, ...members]) await client.endAsync();
console.log(JSON.stringify(outcome));
process.exit(0);
