"""The countries of the world: a fixed vocabulary that does not depend on the data.

Short English names as in the public-domain map data of Natural Earth, and a few territories.
"""

_NAMES = """
Afghanistan; Albania; Algeria; Andorra; Angola; Antigua and Barb.; Argentina; Armenia; Aruba;
Australia; Austria; Azerbaijan; Bahamas; Bahrain; Bangladesh; Barbados; Belarus; Belgium;
Belize; Benin; Bermuda; Bhutan; Bolivia; Bosnia and Herz.; Botswana; Brazil; Brunei; Bulgaria;
Burkina Faso; Burundi; Cambodia; Cameroon; Canada; Cape Verde; Cayman Is.; Central African Rep.;
Chad; Chile; China; Colombia; Comoros; Congo; Costa Rica; Croatia; Cuba; Curaçao; Cyprus; Czech
Rep.; Côte d'Ivoire; Dem. Rep. Congo; Dem. Rep. Korea; Denmark; Djibouti; Dominica; Dominican
Rep.; Ecuador; Egypt; El Salvador; Eq. Guinea; Eritrea; Estonia; Ethiopia; Faeroe Is.; Fiji;
Finland; Fr. Polynesia; France; Gabon; Gambia; Georgia; Germany; Ghana; Gibraltar; Greece;
Greenland; Grenada; Guam; Guatemala; Guernsey; Guinea; Guinea-Bissau; Guyana; Haiti; Honduras;
Hong Kong; Hungary; Iceland; India; Indonesia; Iran; Iraq; Ireland; Isle of Man; Israel; Italy;
Jamaica; Japan; Jersey; Jordan; Kazakhstan; Kenya; Kiribati; Korea; Kosovo; Kuwait; Kyrgyzstan;
Lao PDR; Latvia; Lebanon; Lesotho; Liberia; Libya; Liechtenstein; Lithuania; Luxembourg; Macao;
Macedonia; Madagascar; Malawi; Malaysia; Maldives; Mali; Malta; Marshall Is.; Mauritania;
Mauritius; Mexico; Micronesia; Moldova; Monaco; Mongolia; Montenegro; Morocco; Mozambique;
Myanmar; N. Cyprus; Namibia; Nauru; Nepal; Netherlands; New Caledonia; New Zealand; Nicaragua;
Niger; Nigeria; Norway; Oman; Pakistan; Palau; Palestine; Panama; Papua New Guinea; Paraguay;
Peru; Philippines; Poland; Portugal; Puerto Rico; Qatar; Romania; Russia; Rwanda; S. Sudan;
Saint Lucia; Samoa; San Marino; Saudi Arabia; Senegal; Serbia; Seychelles; Sierra Leone;
Singapore; Slovakia; Slovenia; Solomon Is.; Somalia; Somaliland; South Africa; Spain; Sri Lanka;
St. Kitts and Nevis; St. Vin. and Gren.; Sudan; Suriname; Swaziland; Sweden; Switzerland; Syria;
São Tomé and Principe; Taiwan; Tajikistan; Tanzania; Thailand; Timor-Leste; Togo; Tonga;
Trinidad and Tobago; Tunisia; Turkey; Turkmenistan; Tuvalu; Uganda; Ukraine; United Arab
Emirates; United Kingdom; United States; Uruguay; Uzbekistan; Vanuatu; Vatican; Venezuela;
Vietnam; W. Sahara; Yemen; Zambia; Zimbabwe
"""

COUNTRIES: tuple[str, ...] = tuple(" ".join(name.split()) for name in _NAMES.split(";"))
