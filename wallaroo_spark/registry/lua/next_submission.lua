-- KEYS submission, leases. Returns the number, as text.
-- The number is also above those of the leases: after Redis has lost its data, workers write their leases again, and
-- the clock of a new Redis may be behind that of the old one.
local number = math.max((redis.call('GET', KEYS[1]) or 0) + 1, now())
for _, stored in ipairs(redis.call('HVALS', KEYS[2])) do
  number = math.max(number, cjson.decode(stored).submission + 1)
end
redis.call('SET', KEYS[1], text(number))
return text(number)
