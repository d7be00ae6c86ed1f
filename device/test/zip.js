/** A zip archive of stored members, for tests that write what is wrong. */
import { crc32 as nodeCrc } from "node:zlib";

/** CRC-32, bit by bit: another way than the one that is tested. */
function crc32(bytes) {
  if (nodeCrc) return nodeCrc(bytes);
  let crc = -1;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  return ~crc >>> 0;
}

/**
 * @param {[string, Uint8Array][]} members
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function zip(members) {
  const parts = [];
  const directory = [];
  let at = 0;
  for (const [name, content] of members) {
    const head = Buffer.alloc(30);
    head.writeUInt32LE(0x04034b50, 0);
    head.writeUInt16LE(20, 4);
    head.writeUInt32LE(crc32(content), 14);
    head.writeUInt32LE(content.length, 18);
    head.writeUInt32LE(content.length, 22);
    const title = Buffer.from(name);
    head.writeUInt16LE(title.length, 26);
    const entry = Buffer.alloc(46);
    entry.writeUInt32LE(0x02014b50, 0);
    head.copy(entry, 6, 4, 30);
    entry.writeUInt32LE(at, 42);
    parts.push(head, title, content);
    directory.push(entry, title);
    at += 30 + title.length + content.length;
  }
  const whole = Buffer.concat(directory);
  const end = Buffer.alloc(22);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt16LE(members.length, 8);
  end.writeUInt16LE(members.length, 10);
  end.writeUInt32LE(whole.length, 12);
  end.writeUInt32LE(at, 16);
  return new Uint8Array(Buffer.concat([...parts, whole, end]));
}
