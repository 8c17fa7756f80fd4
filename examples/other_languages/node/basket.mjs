// Read what a Python program has cached, and cache something for it: node basket.mjs SOCKET
import Redis from "ioredis";

const cache = new Redis({ path: process.argv[2], lazyConnect: true });
await cache.connect();

const user = JSON.parse(await cache.get("user:1")); // a dictionary of Python's
await cache.set("basket:1", JSON.stringify({ for: user.name, items: ["tea", "milk"] }), "EX", 600);
const visits = await cache.incr("visits");
await cache.call("DL.SET", "page:1", `<p>${user.name}</p>`, "TAGS", "user:1");
await cache.quit();

console.log(`node: a basket for ${user.name}, visit ${visits}`);
