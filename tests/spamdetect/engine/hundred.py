# ruff: noqa: E501  (one message a line, as it was written)
"""A hundred messages that no template made: fifty ordinary, fifty current scams, ten languages.

They were written before the model was fitted that they judge, and without asking any model.
They are a measure and nothing else: never train on them, never choose a setting by them, and
never change them. Names, firms, numbers and domains are invented.
"""

from __future__ import annotations

from typing import Final

ORDINARY: Final[dict[str, tuple[str, ...]]] = {
    "en": (
        "Hi Priya, the plumber can do Thursday between 9 and 11 or Friday after 3. He says the part is about £60 plus an hour's labour. Which suits you? Sam",
        "Your Northgate Library items are due back on 4 March: The Salt Path; Middlemarch. Renew from your account or reply to this address if someone is waiting for you to collect them.",
        "482913 is your Fernway sign-in code. It works for 10 minutes. We will never ask you for it.",
        "Subject: Invoice 2026-0417 for February\n\nDear Mr Okafor,\n\nplease find attached our invoice for the maintenance of your two lifts in February, 438.00 net, payable within 30 days as usual. The meter readings are on page two.\n\nKind regards\nLinda Marsh\nAccounts",
        "ok so mum's flight lands 18:40 not 17:40, can you still get her? otherwise I'll ask Dan. also she says don't bring the big car",
    ),
    "es": (
        "Buenas tardes, soy Marta de la clínica dental. Le recuerdo su cita de mañana martes a las 10:15 con la doctora Ruiz. Si no puede venir, avísenos al número de siempre. Gracias.",
        "jajaja no me lo puedo creer, ¿y qué le dijiste? Yo me habría ido. Bueno, nos vemos el sábado en casa de Toño, llevo la tortilla y tú el vino",
        "Su pedido 88-20147 ha salido de nuestro almacén de Getafe. Entrega prevista: jueves 12 entre las 9 y las 14 h. No hace falta que haga nada; el repartidor llamará al timbre.",
        "Asunto: Acta de la junta de vecinos\n\nEstimados vecinos: adjunto el acta de la reunión del día 3. La derrama por la reparación del tejado queda en 145 euros por piso, que se cobrarán con el recibo de abril. Cualquier duda, estoy en el 2.º B.\n\nUn saludo, Julián",
        "Profe, no pude subir la tarea porque la plataforma me daba error. Se la mando por aquí en PDF, ¿me la puede aceptar? Perdone la hora. Camila Restrepo, grupo 9B",
    ),
    "de": (
        "Hallo zusammen, die Probe am Mittwoch fällt aus, weil die Halle gestrichen wird. Wir treffen uns stattdessen Donnerstag um 19 Uhr im Pfarrsaal. Bitte die neuen Noten mitbringen!",
        "Ihre Kontoauszüge für Januar liegen in Ihrem Postfach im Online-Banking bereit. Diese Nachricht wurde automatisch erstellt, bitte antworten Sie nicht darauf.",
        "Betreff: Heizkostenabrechnung 2025\n\nSehr geehrte Frau Yıldız,\n\nanbei erhalten Sie die Abrechnung der Heizkosten für das vergangene Jahr. Es ergibt sich ein Guthaben von 83,17 Euro, das wir mit der Miete für April verrechnen.\n\nMit freundlichen Grüßen\nHausverwaltung Brenner",
        "Bin noch im Stau bei Weinsberg, wird halb acht. Fangt ruhig schon an zu essen, und Lukas soll bitte den Hund rauslassen",
        "Guten Tag Herr Petersen, vielen Dank für Ihre Bewerbung als Elektroniker. Wir möchten Sie gern kennenlernen und schlagen den 17. oder 18. März, jeweils 10 Uhr, in unserem Werk in Husum vor. Fahrtkosten erstatten wir. Freundliche Grüße, Anke Thomsen, Personal",
    ),
    "pt": (
        "Oi, amor, consegui sair mais cedo. Passo na padaria e busco a Bia na natação. Precisa de mais alguma coisa além do leite?",
        "Prezado condômino, na próxima segunda-feira, das 8h às 12h, haverá limpeza das caixas d'água e o abastecimento será interrompido. Pedimos que reservem água. Administração",
        "Compra aprovada no cartão final 3391: R$ 87,40 em SUPERMERCADO BOA VISTA, 14/02 às 18:22.",
        "Boa tarde, Dr. Fonseca. Segue em anexo o contrato revisto com as alterações das cláusulas 4 e 9 que discutimos ontem. Se estiver de acordo, assinamos na sexta-feira no escritório. Cumprimentos, Teresa Antunes",
        "galera, o racha do churrasco deu 42 pra cada um. quem ainda não mandou manda pro Beto até domingo pfv, ele pagou a carne toda no cartão dele",
    ),
    "ru": (
        "Марина Сергеевна, добрый день! Завтра у 3 «Б» уроки начинаются со второго, первого урока не будет. Передайте, пожалуйста, остальным родителям.",
        "Заказ 5512 готов к выдаче. Пункт на ул. Лесной, 14, работает с 9 до 21, хранение 7 дней. Возьмите с собой паспорт.",
        "Слушай, я ключи у тебя на кухне не забыл случайно? Уже все карманы вывернул. Если что, заеду вечером после работы",
        "Тема: Протокол совещания от 11 февраля\n\nКоллеги, добрый день. Во вложении протокол и обновлённый график поставок. Замечания прошу прислать до четверга. Бюджет второго квартала обсудим отдельно, когда вернётся Олег Викторович.\n\nС уважением, Анна Лапина",
        "Списание 349 р. Абонентская плата за тариф «Домашний», баланс 1 204 р.",
    ),
    "tr": (
        "Selam abi, halı saha bu hafta salıya alındı, saat 21. Bir kişi eksiğiz, kuzenin gelir mi?",
        "Sayın velimiz, yarın okulumuzda veli toplantısı yapılacaktır. Saat 13.30'da sınıflarda buluşalım. İyi günler dileriz. Atatürk Ortaokulu Müdürlüğü",
        "Kargonuz dağıtıma çıkmıştır. Bugün 12:00-18:00 arasında adresinize teslim edilecektir. Gönderi no: 7740 1182 9035",
        "Merhaba Elif Hanım, ekte mart ayı muhasebe hizmet faturamızı bulabilirsiniz. Tutar geçen ayla aynı, 6.500 TL + KDV. Havaleyi ay sonuna kadar yapmanız yeterli. Kolay gelsin, Hakan",
        "Anne ilaçlarını aldım, eczacı sabah tok karnına iç dedi. Akşam uğrar bırakırım, yemek yapma sakın ben getiriyorum",
    ),
    "id": (
        "Assalamualaikum Bu, maaf besok Raka izin tidak masuk sekolah karena demam. Surat dokternya nanti saya titip ke ayahnya. Terima kasih.",
        "Bro jadi futsal ga? Lapangannya udah gue booking jam 8, patungan 35 ribu per orang ya, bayar di tempat aja",
        "Pembayaran tagihan air bulan Februari sebesar Rp128.500 telah kami terima. Simpan pesan ini sebagai bukti. PDAM Tirta Sejahtera",
        "Yth. Bapak/Ibu warga RT 05, kerja bakti dilaksanakan hari Minggu pukul 07.00. Mohon membawa alat masing-masing. Konsumsi disediakan ibu-ibu PKK. Salam, Pak RT",
        "Kak, pesanannya sudah saya kirim tadi siang pakai ekspedisi biasa, resinya menyusul ya. Kalau ukurannya kekecilan boleh tukar kok",
    ),
    "zh": (
        "王老师您好，我是李子涵的妈妈，孩子今天早上有点发烧，想请一天假，作业我晚上再问同学要，麻烦您了。",
        "【顺达物业】尊敬的业主，因电梯年检，3号楼2单元电梯将于明日9点至11点停运，给您带来不便敬请谅解。",
        "您的验证码是 730264，5分钟内有效，请勿告诉他人。",
        "晚上加班，估计九点多才能到家，你们先吃别等我了。冰箱里还有昨天的排骨，热一下就行",
        "各位同事：附件是第一季度的采购合同，请财务部核对金额后盖章，周五之前寄给对方公司。如有问题请联系行政部小陈，分机8032。",
    ),
    "ar": (
        "السلام عليكم أبو خالد، موعدنا بكرة بعد صلاة العصر عند الورشة إن شاء الله، لا تنسى أوراق السيارة",
        "عزيزي العميل، تم إيداع راتبك بمبلغ 7,250.00 ريال في حسابك المنتهي بـ 4408 بتاريخ 27/02.",
        "مساء الخير دكتورة، أرسلت لك مسودة الفصل الثالث من الرسالة بعد التعديلات التي طلبتِها. هل يناسبك أن نلتقي يوم الأحد في مكتبك؟",
        "يا بنات مين عندها محاضرة الإحصاء حقت أمس؟ كنت تعبانة وما حضرت، صوروها لي الله يسعدكم",
        "نذكركم بأن موعد زيارتكم لعيادة الأسنان يوم الأربعاء الساعة 5:30 مساءً. لتغيير الموعد يرجى الاتصال بالاستقبال.",
    ),
    "pl": (
        "Cześć, Ania mówi, że masz jeszcze namiot po zeszłym roku. Pożyczysz na długi weekend? Oddam w poniedziałek, czysty :)",
        "Przypominamy o wizycie u fizjoterapeuty: środa, 5 marca, godz. 16:20, gabinet 12. Prosimy zabrać wyniki badań.",
        "Temat: Faktura za prąd\n\nSzanowna Pani, w załączeniu przesyłamy fakturę za okres grudzień-styczeń na kwotę 312,66 zł z terminem płatności 20 marca. Jeżeli ma Pani ustawione polecenie zapłaty, prosimy nie wykonywać przelewu.\n\nBiuro Obsługi Klienta",
        "Paczka czeka w automacie przy ul. Długiej 8. Kod odbioru: 551 208. Masz 48 godzin.",
        "Panie Marku, w sobotę będziemy betonować, więc proszę, żeby samochód sąsiada nie stał na wjeździe. Ekipa przyjedzie o szóstej rano. Zostało do zapłaty 4 tysiące, jak się umawialiśmy.",
    ),
}

SCAMS: Final[dict[str, tuple[str, ...]]] = {
    "en": (
        "Hi mum, I dropped my phone in the sink so this is my new number for now, save it. Are you busy? I need to pay a bill today and my banking app is locked to the old phone x",
        "SunPass Final Reminder: you have an outstanding toll of $6.99. To avoid a $50 late fee and suspension of your registration pay before midnight: https://sunpass.tolls-ezpay.example/us",
        "Hello dear, I'm Chloe from TalentBridge HR. We are hiring remote helpers to rate hotels, 60 to 90 minutes a day, you earn $150-$400 daily paid in USDT. No experience needed. Interested? Text me on Telegram @chloe_tb88",
        "Subject: Your PC protection plan has renewed - $399.99\n\nDear Customer, thank you for renewing your 3 year security plan. The amount will appear on your statement within 24 hours. If you did not authorize this charge call our cancellation desk right now at +1 (808) 555-0142 to get a full refund.",
        "Are you at your desk? I'm stuck in a meeting and can't talk. I need you to get 5 gift cards of $200 each for a client before noon, scratch the back and send me pictures of the codes. Keep it between us for now, I'll reimburse you. David (CEO)",
    ),
    "es": (
        "CORREOS: su paquete no pudo ser entregado por falta de pago de aduanas (1,79 EUR). Actualice sus datos en las próximas 12 horas o será devuelto: http://correos-envio.example/pago",
        "Hola, soy Laura de recursos humanos. Vimos su perfil y tenemos un puesto a tiempo parcial: solo dar me gusta a vídeos, 5 euros por cada uno, hasta 200 al día. Escríbame al WhatsApp para recibir su primera tarea",
        "BANCO: Se ha iniciado sesión en su cuenta desde un dispositivo no autorizado en Lugo. Si no ha sido usted, verifique sus claves inmediatamente en https://acceso-seguro.example",
        "Felicidades!! Su número fue seleccionado en el sorteo aniversario de la tienda. Usted ganó un televisor de 65 pulgadas. Solo pague el envío de $49 pesos y reclame su premio hoy mismo: bit.example/premio65",
        "Papá se me rompió el móvil, este es mi número nuevo. Me puedes hacer un favor? Tengo que hacer una transferencia urgente de 940 y no me deja entrar al banco. Te lo devuelvo mañana, no llames que no funciona el micro",
    ),
    "de": (
        "Sparkasse: Ihre pushTAN-Registrierung läuft am 14.02. ab. Ohne Verlängerung wird Ihr Zugang gesperrt. Jetzt aktualisieren: https://s-pushtan-erneuern.example",
        "Hallo Oma, mein Handy ist kaputt, das ist meine neue Nummer. Kannst du mir bitte bei WhatsApp schreiben? Ich muss heute noch eine Rechnung über 2.350 Euro bezahlen und komme nicht an mein Konto",
        "Mit nur 250 Euro Startkapital verdient dieser Rentner aus Kassel jetzt 7.000 Euro im Monat! Die Banken wollen diese KI-Handelsplattform verbieten. Melden Sie sich an, solange noch Plätze frei sind",
        "Betreff: Bundeszentralamt für Steuern - Erstattung\n\nNach Prüfung Ihrer Unterlagen haben wir festgestellt, dass Ihnen eine Rückerstattung von 684,52 Euro zusteht. Bestätigen Sie innerhalb von 48 Stunden Ihre Bankverbindung über das beigefügte Formular, sonst verfällt der Anspruch.",
        "Guten Tag, ich biete ernsthaften Menschen Kredite von 5.000 bis 800.000 Euro zu 2 % Zinsen, ohne Schufa und ohne Vorkosten, Auszahlung in 24 Stunden. Kontaktieren Sie mich per Mail: finanzhilfe.weber@mail.example",
    ),
    "pt": (
        "Mãe, troquei de número, salva esse aqui. O outro tá no conserto. Consegue fazer um pix pra mim de 1.870? É urgente, amanhã cedo eu te devolvo",
        "Detectamos uma compra de R$ 3.299,00 no seu cartão. Se não reconhece, ligue agora para a central 0800 555 0199 e cancele. Não responda este SMS",
        "Seu CPF será suspenso por irregularidades na declaração. Regularize hoje e evite o bloqueio das suas contas e do seu Pix: https://receita-regulariza.example",
        "Ganhe dinheiro jogando no novo tigrinho! Deposite R$ 10 e receba 50 de bônus na hora, plataforma pagando muito hoje, saque no pix em 1 minuto. Cadastre-se pelo meu link: tigrinho777.example",
        "Boa tarde. Chamo-me Sra. Helena Duarte, viúva, com doença terminal. Desejo doar a minha fortuna de 2,8 milhões de euros a uma pessoa de confiança para obras de caridade. Responda-me em privado com o seu nome completo e telefone para o meu advogado.",
    ),
    "ru": (
        "Здравствуйте, это служба безопасности банка. По вашей карте оформляется кредит на 480 000 рублей. Для отмены срочно перезвоните специалисту по номеру 8 800 555-01-77 и никому не сообщайте о звонке",
        "Привет! Проголосуй пожалуйста за мою племянницу в конкурсе рисунков, ей чуть-чуть не хватает до первого места, надо просто войти через телеграм: http://detskiy-konkurs.example",
        "Ищу 3 человек в команду, удалёнка, 1-2 часа в день, доход от 120$ в сутки. Всему обучу, без вложений. Жду + в личку",
        "Ваш аккаунт Госуслуг взломан. С него подана заявка на перевод. Чтобы остановить операцию, сообщите оператору код из СМС: +7 (495) 555-01-23",
        "Добрый день, Алексей. Это Николай Петрович, директор. С вами сейчас свяжется сотрудник ФСБ по поводу утечки данных у нас в институте. Разговор конфиденциальный, никому из коллег ни слова, выполняйте всё, что он скажет.",
    ),
    "tr": (
        "Sayın müşterimiz, adınıza 12.500 TL icra dosyası açılmıştır. Hesaplarınıza bloke konulmaması için dosya borcunuzu bugün ödeyin: https://icra-odeme.example",
        "HOSGELDIN BONUSU! 500 TL deneme bonusu yatirimsiz hemen hesabinda, cevrimsiz, aninda cekim. Yuksek oranlar ve slotlar burada: betkral.example",
        "Merhaba, ben Selin. Evden çalışmak ister misiniz? Günde 1 saat Instagram hesaplarını takip ederek 2.000-5.000 TL kazanabilirsiniz. Ödemeler anında, detaylar için Telegramdan yazın",
        "PTT: Paketiniz adres eksikliği nedeniyle depoda bekletilmektedir. 24 saat içinde 18,50 TL ücreti ödeyip adresinizi güncelleyin yoksa iade edilecektir ptt-teslimat.example",
        "E-devlet uzerinden 7.400 TL kart aidati iadeniz onaylandi. Basvurunuzu tamamlamak icin kart bilgilerinizi girin: aidat-iade.example Son gun bugun",
    ),
    "id": (
        "Selamat! Nomor WA Anda terpilih sebagai pemenang undian berhadiah Rp175 juta dari Bank. Untuk pencairan hubungi Bpk. Hendra, SH di 0812-5550-1234, siapkan biaya administrasi",
        "Paket anda ditahan bea cukai karena tidak ada dokumen. Segera transfer denda Rp4.500.000 hari ini juga atau anda akan dijemput polisi. Petugas: Bripka Andi",
        "Butuh dana cepat? Pinjaman online tanpa jaminan cair 5 menit, limit sampai 50 juta, cukup KTP. Klik dan isi data sekarang: danakilat.example",
        "Kakak, mau kerja sampingan? Cuma follow akun dan like produk, komisi 30rb per tugas, gaji harian 300rb-1jt. Tugas pertama langsung dibayar. Chat admin di Telegram ya",
        "Undangan pernikahan digital kami, mohon dibuka: Undangan_Pernikahan.apk. Mohon maaf kalau hanya lewat WA, kehadiran Bapak/Ibu sangat kami harapkan",
    ),
    "zh": (
        "【ETC中心】您的ETC已被停用，为不影响通行，请于今日24点前点击 etc-renzheng.example 重新认证，逾期将注销。",
        "宝妈学生都可以做，手机兼职点赞关注，一单5到20元，日入300到800，不收任何费用，当天结算，加微信：dianzan668",
        "老师带队，内部消息，本周三只牛股已涨停，免费进群领取明日金股代码，名额只剩20个，加助理QQ了解数字货币稳赚项目",
        "您好，这里是公安局，您名下的银行卡涉嫌洗钱案件，请立即配合调查，把资金转入安全账户，不得告诉任何人，否则将予以拘捕。",
        "您的快递在运输途中丢失，我是京通快递客服，现给您办理双倍理赔，请添加支付宝好友并按照指引提供银行卡号和验证码。",
    ),
    "ar": (
        "عزيزي العميل تم إيقاف بطاقتك الصراف لعدم تحديث البيانات. لتجنب الحظر اتصل فورا على الرقم 0555550143 وزود الموظف برقم البطاقة والرقم السري",
        "مبروك! لقد ربحت جائزة مالية قدرها 200,000 ريال من مسابقة الحلم. أرسل اسمك ورقم حسابك على الواتساب لاستلام الجائزة اليوم",
        "شحنتك رقم SA77120 محتجزة في الجمارك. ادفع رسوم التوصيل 14.50 ريال خلال 24 ساعة عبر الرابط https://saudi-post.example/pay وإلا تعاد إلى المرسل",
        "فرصة عمل من المنزل، ساعة واحدة يوميا وراتب 500 دولار أسبوعيا، فقط تقييم فنادق على الإنترنت. تواصلي معي على التليجرام الآن، المقاعد محدودة",
        "استثمر 100 دولار واربح 1500 خلال ثلاثة أيام مع خبراء التداول، أرباح مضمونة بدون مخاطرة والسحب فوري، راسلني على الخاص",
    ),
    "pl": (
        "InPost: Twoja paczka wymaga doplaty 2,49 zl z powodu przekroczenia wagi. Oplac w ciagu 24h: https://doplata-paczka.example inaczej zostanie zwrocona",
        "Mamo, telefon wpadł mi do wody, piszę z nowego numeru. Możesz zrobić mi szybki przelew blikiem na 1200? Wyślij tylko kod, oddam wieczorem, nie dzwoń bo nie słyszę",
        "Dzień dobry, interesuje mnie Pani oferta z wózkiem. Już zapłaciłam przez OLX Dostawa, kurier odbierze jutro. Proszę wejść w link, wpisać dane karty i odebrać pieniądze: olx-odbior.example/7715",
        "PGE: na dzis zaplanowano odlaczenie energii elektrycznej z powodu zaleglosci 3,76 zl. Prosimy o natychmiastowe uregulowanie naleznosci: pge-platnosc.example",
        "Znany piłkarz zdradził, jak z 800 zł zrobił 40 tysięcy w miesiąc dzięki platformie inwestycyjnej wspieranej przez państwo. Zostaw numer, nasz doradca zadzwoni i pomoże wypłacić pierwszy zysk",
    ),
}
