"""Rate caps in Lua: the sliding windows and the loans of :mod:`...storage.memory_rates`.

Each script is one atomic step on the keys of one organisation, which begin with ``KEYS[1]`` (with a
hash tag, so that a cluster keeps them together):

- ``:w:BUCKET`` list of the times of calls, oldest first
- ``:lent`` hash of the calls that are lent, by bucket
- ``:loans`` hash of loans, by name; ``:ends`` sorted by when they count no longer
- ``:buckets`` buckets sorted by when they may be forgotten

Every key expires once nothing in it counts any more. ``ARGV[1]`` is the time in milliseconds; a
negative one asks for the server's.
"""

from __future__ import annotations

from typing import Final

_COMMON: Final = """
local tag = KEYS[1]
local now = tonumber(ARGV[1])
if now < 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local function keep(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end

local function window(bucket) return tag .. ':w:' .. bucket end

local function note_bucket(bucket, until_ms)
  local key = tag .. ':buckets'
  local known = tonumber(redis.call('ZSCORE', key, bucket) or 0)
  if known < until_ms then redis.call('ZADD', key, until_ms, bucket) end
  keep(key, until_ms - now)
end

local function is_full(bucket, most)
  local key = tag .. ':buckets'
  if redis.call('ZCARD', key) < most or redis.call('ZSCORE', key, bucket) then return false end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  return redis.call('ZCARD', key) >= most
end

local function drop_old(bucket, per_ms)
  local key = window(bucket)
  local oldest = redis.call('LINDEX', key, 0)
  while oldest and tonumber(oldest) <= now - per_ms do
    redis.call('LPOP', key)
    oldest = redis.call('LINDEX', key, 0)
  end
  return redis.call('LLEN', key)
end

local function count(bucket, per_ms, at_ms, times)
  local key = window(bucket)
  for _ = 1, times do redis.call('RPUSH', key, at_ms) end
  if times > 0 then
    keep(key, per_ms)
    note_bucket(bucket, now + per_ms)
  end
end

local function lent(bucket)
  return tonumber(redis.call('HGET', tag .. ':lent', bucket) or 0)
end

local function find_loan(name)
  local found = redis.call('HGET', tag .. ':loans', name)
  return found and cjson.decode(found)
end

local function save_loan(name, loan)
  local per_ms = 0
  for _, each in ipairs(loan.buckets) do per_ms = math.max(per_ms, each[2]) end
  local over_ms = loan.until_ms + per_ms
  redis.call('HSET', tag .. ':loans', name, cjson.encode(loan))
  redis.call('ZADD', tag .. ':ends', over_ms, name)
  for _, each in ipairs(loan.buckets) do note_bucket(each[1], over_ms) end
  for _, part in ipairs({':loans', ':ends', ':lent'}) do keep(tag .. part, over_ms - now) end
end

local function drop_loan(name)
  redis.call('HDEL', tag .. ':loans', name)
  redis.call('ZREM', tag .. ':ends', name)
end

local function end_loan(name)
  local loan = find_loan(name)
  if loan then
    drop_loan(name)
    for _, each in ipairs(loan.buckets) do
      if redis.call('HINCRBY', tag .. ':lent', each[1], -loan.calls) <= 0 then
        redis.call('HDEL', tag .. ':lent', each[1])
      end
    end
  end
  return loan
end

local function end_loans()
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', tag .. ':ends', '-inf', now)) do
    end_loan(name)
  end
end
"""

TAKE: Final = (
    _COMMON
    + """
local uses, most, full_wait_ms = cjson.decode(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local wait_ms = 0
for _, use in ipairs(uses) do
  local bucket, calls, per_ms = use[1], use[2], use[3]
  if is_full(bucket, most) then return full_wait_ms end
  local made, out = drop_old(bucket, per_ms), lent(bucket)
  if out > 0 and made + out >= calls then
    end_loans()
    out = lent(bucket)
  end
  local over = made + out - calls
  if over >= made then
    wait_ms = math.max(wait_ms, math.min(per_ms, full_wait_ms))
  elseif over >= 0 then
    local freed_by = tonumber(redis.call('LINDEX', window(bucket), over))
    wait_ms = math.max(wait_ms, freed_by + per_ms - now)
  end
end
if wait_ms > 0 then return wait_ms end
for _, use in ipairs(uses) do count(use[1], use[3], now, 1) end
return -1
"""
)
"""Counts one call under every cap, or under none; returns -1, or the wait in milliseconds."""

LEND: Final = (
    _COMMON
    + """
local uses, most = cjson.decode(ARGV[2]), tonumber(ARGV[3])
local name, wanted, ttl_ms = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local loans = redis.call('HLEN', tag .. ':loans')
if #uses == 0 or loans >= most then return 0 end
local room, buckets = nil, {}
for _, use in ipairs(uses) do
  local bucket, calls, per_ms = use[1], use[2], use[3]
  if is_full(bucket, most) then return 0 end
  local left = calls - drop_old(bucket, per_ms) - lent(bucket)
  room = room and math.min(room, left) or left
  buckets[#buckets + 1] = {bucket, per_ms}
end
local calls = math.min(wanted, math.floor(room / (loans + 2)))
if calls < 1 then return 0 end
end_loan(name)
for _, each in ipairs(buckets) do redis.call('HINCRBY', tag .. ':lent', each[1], calls) end
save_loan(name, {first_name = name, calls = calls, until_ms = now + ttl_ms, buckets = buckets})
return calls
"""
)
"""Counts calls in advance; returns how many."""

SETTLE: Final = (
    _COMMON
    + """
local name, unused, unless = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local loan = find_loan(name)
if not loan or loan.first_name == unless then return 0 end
end_loan(name)
local used = loan.calls - math.min(unused, loan.calls)
local at_ms = math.min(now, loan.until_ms)
for _, each in ipairs(loan.buckets) do count(each[1], each[2], at_ms, used) end
return 1
"""
)
"""Ends a loan; its used calls count as made now."""

EXTEND: Final = (
    _COMMON
    + """
local name, ttl_ms, new_name = ARGV[2], tonumber(ARGV[3]), ARGV[4]
if new_name ~= name and find_loan(new_name) then
  end_loan(name)
  name = new_name
end
local loan = find_loan(name)
if not loan then return 0 end
drop_loan(name)
loan.until_ms = now + ttl_ms
save_loan(new_name, loan)
return 1
"""
)
"""Gives a loan more time and another name."""
