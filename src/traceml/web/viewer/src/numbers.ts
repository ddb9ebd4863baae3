/** Writes numbers that Python has already brought into their unit. */

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });

const FULL_WHOLE = 1e15; // whole numbers below it are written in full: a step is a name
const SMALL = 1e-4; // below it, and from LARGE on, digits are counted by a power of ten
const LARGE = 1e9;
const AXIS_SMALL = 1e-3; // an axis has room for few digits
const AXIS_LARGE = 1e6;

/** Whole numbers in full (a step is a name), all others with four significant digits. */
export function written(value: number | null | undefined, unit = ""): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "n/a";
  const digits = digitsOf(value);
  if (unit === "") return digits;
  return /^[%/×°]/.test(unit) ? digits + unit : `${digits} ${unit}`;
}

function digitsOf(value: number): string {
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < FULL_WHOLE) return whole.format(value);
  return size < SMALL || size >= LARGE ? byPower(value, 4) : short.format(value);
}

/** A label of an axis: short, whatever its size: 20, 1.5e6, 2e-8. */
export function axisNumber(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < AXIS_SMALL || size >= AXIS_LARGE)) return byPower(value, 3);
  return short.format(value);
}

/** "2e-8", "1.235e308". */
function byPower(value: number, digits: number): string {
  const [digitsBefore, power] = value.toExponential(digits - 1).split("e") as [string, string];
  const plain = digitsBefore.includes(".") ? digitsBefore.replace(/\.?0+$/, "") : digitsBefore;
  return `${plain}e${power.replace("+", "")}`;
}

/** A moment in the reader's own time zone: "2026-11-16 12:42"; `words` where it is not known. */
export function localTime(unixS: number | null, words: string, isExact = false): string {
  const when = new Date((unixS ?? NaN) * 1000);
  if (Number.isNaN(when.getTime())) return words;
  const two = (value: number): string => String(value).padStart(2, "0");
  const day = [when.getFullYear(), two(when.getMonth() + 1), two(when.getDate())].join("-");
  const time = [when.getHours(), when.getMinutes(), when.getSeconds()].slice(0, isExact ? 3 : 2);
  const moment = `${day} ${time.map(two).join(":")}`;
  return isExact ? `${moment} ${zoneOf(when)}` : moment;
}

/** "UTC", "GMT+5:30": paper and reports are read elsewhere, too. */
function zoneOf(when: Date): string {
  const parts = new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(when);
  return parts.find(({ type }) => type === "timeZoneName")?.value ?? "";
}

/** "ms" beside its axis: "Step time (ms)". */
export function axisWords(label: string, unit: string): string {
  if (unit === "") return label;
  return label === "" ? unit : `${label} (${unit})`;
}
