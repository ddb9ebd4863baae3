/** How something is to be taken, by shape and word and not by colour alone. */

import type { RunState, Tone } from "../schema";

const WORDS: Record<Tone, string> = {
  good: "good",
  info: "for information",
  warn: "warning",
  crit: "critical",
  muted: "nothing to say",
};

const SHAPES: Record<Tone, string> = {
  good: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1m3.6 5L7.2 11 4.4 8.3l1-1 1.7 1.6 3.4-3.9z",
  info: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1M7.2 4h1.6v1.7H7.2zm0 3h1.6v5H7.2z",
  warn: "M8 1.2 15.4 14.4H.6zM7.2 6v4h1.6V6zm0 5v1.6h1.6V11z",
  crit: "M5 1h6l4 4v6l-4 4H5l-4-4V5zm.2 3.3L4.3 5.2 7.1 8l-2.8 2.8.9.9L8 8.9l2.8 2.8.9-.9L8.9 8l2.8-2.8-.9-.9L8 7.1z",
  muted: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1M4.5 7.2h7v1.6h-7z",
};

export function ToneIcon({ tone }: { tone: Tone }) {
  return (
    <svg class={`icon tone-${tone}`} viewBox="0 0 16 16" role="img" aria-label={WORDS[tone]}>
      <path fill="currentColor" fill-rule="evenodd" d={SHAPES[tone]} />
    </svg>
  );
}

/** A finding's short name: "INPUT-BOUND". */
export function Badge({ tone, children }: { tone: Tone; children: string }) {
  return (
    <span class={`badge tone-${tone}`}>
      <ToneIcon tone={tone} />
      {children}
    </span>
  );
}

const STATE_TONES: Record<RunState, Tone> = {
  live: "good",
  finished: "muted",
  failed: "crit",
  lost: "warn",
};

const STATE_SHAPES: Record<RunState, string> = {
  live: "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3",
  finished: "M3 8.4 6.4 12 13 4.6l-1.2-1.1-5.4 6.2-2.2-2.4z",
  failed: "M4.2 3 8 6.8 11.8 3 13 4.2 9.2 8l3.8 3.8-1.2 1.2L8 9.2 4.2 13 3 11.8 6.8 8 3 4.2z",
  lost: "M7 10.2c0-2.4 2.4-2.4 2.4-4 0-.8-.6-1.4-1.5-1.4S6.4 5.4 6.4 6.4H4.6C4.6 4.4 6 3.2 8 3.2s3.3 1.2 3.3 2.9c0 2.4-2.5 2.5-2.5 4.1zm0 1.2h1.8v1.7H7z",
};

export function StatePill({ state, children }: { state: RunState; children: string }) {
  return (
    <span class={`state state-${state} tone-${STATE_TONES[state]}`}>
      <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
        <path fill="currentColor" fill-rule="evenodd" d={STATE_SHAPES[state]} />
      </svg>
      <span>{children}</span>
    </span>
  );
}
