/** Writes numbers that Python has already brought into their unit. */

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });

/** Whole numbers in full (a step is a name), all others with four significant digits. */
export function written(value: number | null | undefined, unit = ""): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "n/a";
  const digits = (Number.isInteger(value) ? whole : short).format(value);
  if (unit === "") return digits;
  return /^[%/×°]/.test(unit) ? digits + unit : `${digits} ${unit}`;
}

/** "ms" beside its axis: "Step time (ms)". */
export function axisWords(label: string, unit: string): string {
  if (unit === "") return label;
  return label === "" ? unit : `${label} (${unit})`;
}
