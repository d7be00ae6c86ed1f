/** What is wrong with a file, a name or a value, in words for a person. */
export class PrivrecError extends Error {
  name = "PrivrecError";
}

/**
 * Return a value as an error shows it: in quotes and cut.
 * @param {unknown} value
 * @returns {string}
 */
export function got(value) {
  const text = typeof value === "string" ? JSON.stringify(value) : String(value);
  return text.length <= 80 ? text : `${text.slice(0, 79)}…`;
}

const PRINTABLE = /^[ -~]*$/;
const UNSAFE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

/**
 * Return text without control and formatting characters; a line break becomes a space.
 * @param {string} text
 * @returns {string}
 */
export const safeText = (text) =>
  PRINTABLE.test(text) ? text : text.replace(/\r\n|[\t\n\r]/g, " ").replace(UNSAFE, "�");
